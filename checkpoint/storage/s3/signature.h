// AWS Signature Version 4 in request headers. Pure: time is an argument.
//
// Source: docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html. S3 wants each part
// of a path percent-encoded once, and no path normalised.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace dtrain::checkpoint::s3 {

struct SigningKeys {
  std::string access_key_id;
  std::string secret_access_key;
  std::string session_token;  // "": none. The caller adds its header.
};

using NamedValues = std::vector<std::pair<std::string, std::string>>;

struct RequestToSign {
  std::string method;
  std::string path;            // Not encoded, with '/' at its begin.
  NamedValues query;           // Not encoded.
  NamedValues headers;         // All that are to be signed; must hold host and x-amz-date.
  std::string payload_sha256;  // Hex, or UNSIGNED-PAYLOAD.
};

struct SigningScope {
  std::string time;  // AmzTime of the request.
  std::string region;
  std::string service = "s3";
};

// "20130524T000000Z".
std::string AmzTime(absl::Time time);
// Every byte outside A-Z a-z 0-9 - . _ ~ as %XX; '/' stays if `keep_slash`.
std::string PercentEncode(absl::string_view text, bool keep_slash);
// "max-keys=2&prefix=J": encoded, sorted by name, then value.
std::string EncodeQuery(const NamedValues& query);

std::string CanonicalRequest(const RequestToSign& request);
// The value of the header Authorization.
std::string Authorization(const RequestToSign& request, const SigningScope& scope,
                          const SigningKeys& keys);

}  // namespace dtrain::checkpoint::s3
