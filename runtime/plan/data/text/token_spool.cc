#include "runtime/plan/data/text/token_spool.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/file.h"
#include "base/status.h"

namespace dtrain::plan {
namespace {

constexpr size_t kBufferBytes = 1 << 20;

}  // namespace

absl::StatusOr<SpoolSize> SpoolSize::FromJson(const Json& json) {
  if (!json.is_array() || json.size() != 2) {
    return absl::InvalidArgumentError("a split's size is not a pair");
  }
  SpoolSize size;
  DT_ASSIGN_OR_RETURN(size.documents, JsonInteger(json[0]));
  DT_ASSIGN_OR_RETURN(size.tokens, JsonInteger(json[1]));
  constexpr int64_t kMost = int64_t{1} << 48;  // So that sizes in bytes cannot overflow.
  if (size.documents < 0 || size.tokens < 0 || size.documents > kMost || size.tokens > kMost) {
    return absl::InvalidArgumentError("a split's size is out of range");
  }
  return size;
}

absl::StatusOr<GrowingFile> GrowingFile::Open(const std::string& path, int64_t bytes) {
  GrowingFile file;
  file.path_ = path;
  DT_ASSIGN_OR_RETURN(file.fd_, OpenFile(path, O_WRONLY | O_CREAT));
  const std::string what = absl::StrCat("cannot go on with ", path);
  struct stat info {};
  if (fstat(file.fd_.get(), &info) != 0) {
    return ErrnoStatus(errno, what);
  }
  if (info.st_size < bytes) {  // Cutting it to its length would fill it with zeros.
    return absl::DataLossError(absl::StrFormat(
        "%s has %d bytes, fewer than the %d that its journal counts; remove the folder of "
        "unfinished work and begin anew",
        path, info.st_size, bytes));
  }
  if (ftruncate(file.fd_.get(), bytes) != 0 || lseek(file.fd_.get(), 0, SEEK_END) < 0) {
    return ErrnoStatus(errno, what);
  }
  return file;
}

absl::Status GrowingFile::Append(const void* data, size_t bytes) {
  if (bytes > 0) {
    buffer_.append(static_cast<const char*>(data), bytes);
  }
  return buffer_.size() < kBufferBytes ? absl::OkStatus() : Flush();
}

absl::Status GrowingFile::Flush() {
  const absl::Status written = WriteFully(fd_.get(), buffer_.data(), buffer_.size());
  buffer_.clear();
  return Annotate(written, path_);
}

absl::Status GrowingFile::Sync() {
  DT_RETURN_IF_ERROR(Flush());
  return fdatasync(fd_.get()) == 0 ? absl::OkStatus()
                                   : ErrnoStatus(errno, absl::StrCat("cannot write ", path_));
}

absl::StatusOr<TokenSpool> TokenSpool::Open(const SpoolFiles& files, const SpoolSize& size) {
  DT_ASSIGN_OR_RETURN(GrowingFile tokens,
                      GrowingFile::Open(files.tokens(), size.tokens * files.bytes_per_token));
  DT_ASSIGN_OR_RETURN(GrowingFile lengths, GrowingFile::Open(files.lengths(), 4 * size.documents));
  DT_ASSIGN_OR_RETURN(GrowingFile mask,
                      GrowingFile::Open(files.mask(), files.is_masked ? size.tokens : 0));
  return TokenSpool(files, size, std::move(tokens), std::move(lengths), std::move(mask));
}

absl::Status TokenSpool::Append(absl::Span<const uint32_t> ids, absl::Span<const uint8_t> mask) {
  DT_CHECK_EQ(mask.size(), files_.is_masked ? ids.size() : 0U);
  const auto length = static_cast<int32_t>(ids.size());
  if (files_.bytes_per_token == 4) {
    DT_RETURN_IF_ERROR(tokens_.Append(ids.data(), 4 * ids.size()));
  } else {
    narrow_.resize(2 * ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      DT_CHECK(ids[i] < 65536) << ids[i];
      const auto id = static_cast<uint16_t>(ids[i]);
      std::memcpy(narrow_.data() + 2 * i, &id, sizeof(id));
    }
    DT_RETURN_IF_ERROR(tokens_.Append(narrow_.data(), narrow_.size()));
  }
  DT_RETURN_IF_ERROR(lengths_.Append(&length, sizeof(length)));
  DT_RETURN_IF_ERROR(mask_.Append(mask.data(), mask.size()));
  ++size_.documents;
  size_.tokens += length;
  return absl::OkStatus();
}

absl::Status TokenSpool::Sync() {
  DT_RETURN_IF_ERROR(tokens_.Sync());
  DT_RETURN_IF_ERROR(lengths_.Sync());
  return mask_.Sync();
}

}  // namespace dtrain::plan
