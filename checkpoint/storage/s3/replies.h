// Reads S3's replies: errors, as one line that says what to do, listings and uploads. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/storage/s3/aws_settings.h"
#include "checkpoint/storage/s3/http.h"

namespace dtrain::checkpoint::s3 {

// A request as messages name it.
struct RequestPlace {
  std::string action;              // "read", "list".
  std::string permission;          // "s3:GetObject".
  std::string url;                 // "s3://bucket/key".
  std::string credentials_origin;  // "profile default".
  absl::Time sent_at;
};

struct ReplyError {
  enum class Next { kFail, kTryAgain, kRenewCredentials };
  Next next = Next::kFail;
  std::string code;     // S3's: "NoSuchKey"; "" when the reply has none.
  absl::Status status;  // Names bucket, key, region and endpoint, and says what to do.
};

// Says what a reply with an error means. AlreadyExists: the condition of a PUT failed. NotFound:
// there is no such key. Unauthenticated: wrong or expired keys. PermissionDenied: the keys do not
// allow it. FailedPrecondition: no such bucket, another region, the clock is off. Unavailable: try
// again.
ReplyError JudgeReply(const HttpReply& reply, const RequestPlace& place,
                      const S3Settings& settings);
// "cannot read s3://bucket/key (region us-east-1, endpoint http://...)".
std::string FailedRequest(const RequestPlace& place, const S3Settings& settings);

struct ListedObject {
  std::string key;
  uint64_t bytes = 0;
};
struct ListedUpload {
  std::string key;
  std::string upload_id;
};

struct ObjectPage {
  std::vector<ListedObject> objects;
  std::vector<std::string> prefixes;  // With '/' at their end.
  std::string continuation_token;     // "": this is the last page.
};
absl::StatusOr<ObjectPage> ParseObjectPage(const std::string& body);

struct UploadPage {
  std::vector<ListedUpload> uploads;
  std::string key_marker;  // "": this is the last page.
  std::string upload_id_marker;
};
absl::StatusOr<UploadPage> ParseUploadPage(const std::string& body);

// The UploadId of a reply to CreateMultipartUpload.
absl::StatusOr<std::string> ParseUploadId(const std::string& body);
// Whether a reply 200 holds an <Error>, as CompleteMultipartUpload may send it.
bool HoldsError(const std::string& body);

}  // namespace dtrain::checkpoint::s3
