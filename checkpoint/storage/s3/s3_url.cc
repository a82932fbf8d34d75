#include "checkpoint/storage/s3/s3_url.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "checkpoint/storage/file_system.h"
#include "checkpoint/storage/s3/s3_storage.h"

namespace dtrain::checkpoint {

constexpr absl::string_view kS3Scheme = "s3://";

bool IsS3Url(const std::string& text) { return absl::StartsWith(text, kS3Scheme); }

namespace s3 {
namespace {

bool IsBucketName(absl::string_view name) {
  constexpr size_t kNameBytesMin = 3;
  constexpr size_t kNameBytesMax = 63;
  const auto plain = [](char c) {
    return absl::ascii_islower(static_cast<unsigned char>(c)) ||
           absl::ascii_isdigit(static_cast<unsigned char>(c));
  };
  return name.size() >= kNameBytesMin && name.size() <= kNameBytesMax && plain(name.front()) &&
         plain(name.back()) && !absl::StrContains(name, "..") &&
         std::all_of(name.begin(), name.end(),
                     [&](char c) { return plain(c) || c == '-' || c == '.'; });
}

}  // namespace

absl::StatusOr<S3Url> ParseS3Url(const std::string& url) {
  if (!IsS3Url(url)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", url, "\" is no address of an object store; want s3://bucket/prefix"));
  }
  std::string rest = url.substr(kS3Scheme.size());
  while (!rest.empty() && rest.back() == '/') {
    rest.pop_back();
  }
  const size_t slash = rest.find('/');
  S3Url parsed;
  parsed.bucket = rest.substr(0, slash);
  parsed.prefix = slash == std::string::npos ? "" : rest.substr(slash + 1);
  if (!IsBucketName(parsed.bucket)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", parsed.bucket, "\" in ", url, " is no name of a bucket; want 3 to 63 characters of ",
        "a-z, 0-9, '-' and '.', as in s3://bucket/prefix"));
  }
  const bool control = std::any_of(parsed.prefix.begin(), parsed.prefix.end(), [](char c) {
    return absl::ascii_iscntrl(static_cast<unsigned char>(c));
  });
  if (control || (!parsed.prefix.empty() && !CheckRelativePath(parsed.prefix).ok())) {
    return absl::InvalidArgumentError(absl::StrCat(
        url, ": the prefix must have no empty, \".\" or \"..\" parts and no control characters"));
  }
  return parsed;
}

}  // namespace s3
}  // namespace dtrain::checkpoint
