#include "runtime/plan/data/token_mask.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/file.h"
#include "base/status.h"

namespace dtrain::plan {
namespace {

// Where the header's numbers are; the bytes between the last one and the end are 0.
constexpr size_t kVersionAt = 8;
constexpr size_t kTokensAt = 16;
constexpr size_t kRowLengthAt = 24;
constexpr size_t kTrainedAt = 32;

template <typename T>
T Field(absl::string_view bytes, size_t offset) {
  T value{};
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

}  // namespace

absl::StatusOr<MaskHeader> ParseMaskHeader(absl::string_view head, int64_t file_bytes,
                                           absl::string_view path) {
  const auto bad = [&](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrFormat("token mask %s: %s", path, what));
  };
  if (!absl::StartsWith(head, kMaskMagic)) {
    return bad("it does not begin with DTRNMASK; remove the file if it is no mask of dtrain's");
  }
  if (static_cast<int64_t>(head.size()) < kMaskHeaderBytes) {
    return bad(absl::StrFormat("it ends at byte %d, inside the 64-byte header", file_bytes));
  }
  if (Field<int32_t>(head, kVersionAt) != kMaskVersion) {
    return bad(absl::StrFormat("the version at byte 8 is %d, want %d",
                               Field<int32_t>(head, kVersionAt), kMaskVersion));
  }
  const MaskHeader header{Field<int64_t>(head, kTokensAt), Field<int64_t>(head, kRowLengthAt),
                          Field<int64_t>(head, kTrainedAt)};
  if (header.tokens < 0 || header.tokens != file_bytes - kMaskHeaderBytes) {
    return bad(
        absl::StrFormat("it has %d bytes; its header promises %d tokens, one byte each "
                        "behind 64 bytes",
                        file_bytes, header.tokens));
  }
  if (header.row_length < 0 || header.trained < 0 || header.trained > header.tokens) {
    return bad(absl::StrFormat("its header has rows of %d tokens and %d trained tokens of %d",
                               header.row_length, header.trained, header.tokens));
  }
  return header;
}

std::string MakeMaskHeader(const MaskHeader& header) {
  std::string bytes(static_cast<size_t>(kMaskHeaderBytes), '\0');
  const auto put = [&](size_t offset, const auto value) {
    std::memcpy(bytes.data() + offset, &value, sizeof(value));
  };
  std::copy(kMaskMagic.begin(), kMaskMagic.end(), bytes.begin());
  put(kVersionAt, kMaskVersion);
  put(kTokensAt, header.tokens);
  put(kRowLengthAt, header.row_length);
  put(kTrainedAt, header.trained);
  return bytes;
}

std::string MaskPath(const std::string& token_path) { return absl::StrCat(token_path, ".mask"); }

bool MayHaveMask(const std::string& token_path) {
  return !IsRemoteAddress(token_path) || absl::StartsWith(token_path, "s3://") ||
         !absl::StrContains(token_path, "?");
}

absl::StatusOr<std::optional<MaskFile>> MaskFile::OpenFor(const std::string& token_path,
                                                          int64_t tokens, DataStore* store) {
  if (!MayHaveMask(token_path)) {
    return std::nullopt;
  }
  const std::string path = MaskPath(token_path);
  const bool is_remote = IsRemoteAddress(path);
  struct stat info {};
  // Only a name that is not there means that there is no mask: else prompts would be trained on.
  if (!is_remote && lstat(path.c_str(), &info) != 0 && (errno == ENOENT || errno == ENOTDIR)) {
    return std::nullopt;
  }
  absl::StatusOr<DataFile> opened = DataFile::Open(path, "token mask", store);
  if (is_remote && absl::IsNotFound(opened.status())) {
    return std::nullopt;
  }
  if (is_remote && absl::IsPermissionDenied(opened.status())) {
    return absl::PermissionDeniedError(absl::StrCat(
        opened.status().message(),
        "; whether there is a mask must be known: let the keys list the bucket, or reply 404 for "
        "what is not there, or put \"?\" behind the address of a file that has none"));
  }
  DT_ASSIGN_OR_RETURN(DataFile file, std::move(opened));
  DT_ASSIGN_OR_RETURN(const std::string head, file.Head(kMaskHeaderBytes));
  DT_ASSIGN_OR_RETURN(const MaskHeader header, ParseMaskHeader(head, file.bytes(), path));
  if (header.tokens != tokens) {
    return file.Bad(
        absl::StrFormat("it is for %d tokens, but %s has %d; remove the mask if it is "
                        "of an earlier file, or prepare both again",
                        header.tokens, token_path, tokens));
  }
  return std::optional<MaskFile>(MaskFile(std::move(file), header));
}

absl::Status MaskFile::Copy(int64_t begin, absl::Span<uint8_t> out) const {
  DT_CHECK(begin >= 0 && begin <= header_.tokens - static_cast<int64_t>(out.size()))
      << "mask bytes [" << begin << ", +" << out.size() << ") of " << header_.tokens;
  DT_RETURN_IF_ERROR(
      file_.ReadAt(kMaskHeaderBytes + begin, {reinterpret_cast<char*>(out.data()), out.size()}));
  const auto unknown = std::find_if(out.begin(), out.end(), [](uint8_t bits) {
    return (bits & ~(kMaskTrained | kMaskStart)) != 0;
  });
  if (unknown != out.end()) {
    return file_.Bad(absl::StrFormat("byte %d is %d, want 0 to 3: the file is damaged",
                                     kMaskHeaderBytes + begin + (unknown - out.begin()), *unknown));
  }
  return absl::OkStatus();
}

}  // namespace dtrain::plan
