// Where requests go, from options, the environment and the configuration files of the AWS tools.
// Reads files; no state.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/job_env.h"
#include "checkpoint/storage/s3/s3_storage.h"
#include "checkpoint/storage/s3/s3_url.h"

namespace dtrain::checkpoint::s3 {

// The values of one profile by their names in lower case.
using AwsProfile = std::map<std::string, std::string>;

// The profiles of a file in the format of ~/.aws/credentials or, with `is_config`, ~/.aws/config,
// where a section is called "profile NAME". Lines that are none of "[section]", "name = value" and
// comments, and lines of nested settings, are passed over.
std::map<std::string, AwsProfile> ParseAwsFile(absl::string_view text, bool is_config);

struct ProfileFound {
  std::string name;
  bool named = false;  // By AWS_PROFILE.
  AwsProfile values;   // Both files are read; the credentials file's values win.
};

// The profile of AWS_PROFILE or else "default". NotFound: AWS_PROFILE names one that no file has.
absl::StatusOr<ProfileFound> FindProfile(const Environment& environment);

struct S3Settings {
  std::string bucket;
  std::string region;
  std::string endpoint;  // "https://s3.eu-west-1.amazonaws.com": scheme and authority only.
  bool path_style = false;
  std::string ca_bundle;
};

// InvalidArgument: an endpoint that is no http(s) URL of a host, or a region with odd characters.
absl::StatusOr<S3Settings> ResolveSettings(const S3Url& url, const S3Options& options,
                                           const Environment& environment,
                                           const AwsProfile& profile);

// The value of `name`; "" when it is not set.
std::string Lookup(const Environment& environment, const std::string& name);

}  // namespace dtrain::checkpoint::s3
