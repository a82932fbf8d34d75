// The twin of s3_storage.cc for builds without libcurl's header.
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "checkpoint/storage/s3/s3_storage.h"
#include "checkpoint/storage/s3/s3_url.h"

namespace dtrain::checkpoint {

absl::StatusOr<std::unique_ptr<Storage>> OpenS3Storage(const std::string& url,
                                                       const S3Options& /*options*/) {
  DT_RETURN_IF_ERROR(s3::ParseS3Url(url).status());
  return absl::UnimplementedError(absl::StrCat(
      "cannot open ", url,
      ": this dtrain was built without libcurl; install libcurl4-openssl-dev and build it again"));
}

}  // namespace dtrain::checkpoint
