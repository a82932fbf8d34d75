// The keys that requests are signed with, and where they come from.
//
// In order: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, the profile in the files of the AWS tools,
// web identity, a container's endpoint, the instance's metadata (IMDSv2). No key, token or secret
// is ever part of a message.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/job_env.h"
#include "checkpoint/storage/s3/aws_settings.h"
#include "checkpoint/storage/s3/http.h"
#include "checkpoint/storage/s3/signature.h"

namespace dtrain::checkpoint::s3 {

struct Credentials {
  SigningKeys keys;
  absl::Time expires = absl::InfiniteFuture();
  std::string origin;  // For messages: "AWS_ACCESS_KEY_ID", "profile default".
};

// Thread-safe. REQUIRES: transport and clock outlive it.
class CredentialProvider {
 public:
  CredentialProvider(Environment environment, ProfileFound profile, std::string region,
                     HttpTransport& transport, Clock& clock);

  // The credentials; those that expire within five minutes are fetched anew, which may block for a
  // few requests. Unauthenticated: there are none, and where they were looked for.
  absl::StatusOr<Credentials> Get();
  // The server called them expired: the next Get fetches them anew. False when they would be the
  // same.
  bool Forget();

 private:
  absl::StatusOr<Credentials> Fetch();
  absl::StatusOr<std::optional<Credentials>> FromProfile();
  absl::StatusOr<Credentials> FromWebIdentity(const std::string& token_file,
                                              const std::string& role_arn,
                                              const std::string& session_name);
  absl::StatusOr<Credentials> FromContainer(const std::string& url);
  absl::StatusOr<Credentials> FromInstance();
  absl::StatusOr<std::string> Ask(const HttpRequest& request, const std::string& what);

  const Environment environment_;
  const ProfileFound profile_;
  const std::string region_;
  HttpTransport& transport_;
  Clock& clock_;
  std::mutex mutex_;
  std::optional<Credentials> current_;
};

}  // namespace dtrain::checkpoint::s3
