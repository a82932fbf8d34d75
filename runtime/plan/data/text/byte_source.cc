#include "runtime/plan/data/text/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "runtime/plan/data/parquet/format.h"
#include "runtime/plan/data/parquet/parquet_rows.h"

namespace dtrain::plan {
namespace {

constexpr size_t kInputBytes = 256 << 10;

// The bytes as they are stored, with a look at the first ones.
class StoredBytes {
 public:
  StoredBytes(std::string name, UniqueFd fd) : name_(std::move(name)), fd_(std::move(fd)) {}

  absl::Status Peek(size_t bytes) {
    while (head_.size() < bytes) {
      char chunk[64];
      DT_ASSIGN_OR_RETURN(const size_t n,
                          ReadFd({chunk, std::min(sizeof(chunk), bytes - head_.size())}));
      if (n == 0) {
        break;
      }
      head_.append(chunk, n);
    }
    return absl::OkStatus();
  }
  const std::string& head() const { return head_; }
  const std::string& name() const { return name_; }
  int64_t consumed() const { return consumed_; }

  // Some bytes, 0 at the end.
  absl::StatusOr<size_t> ReadSome(absl::Span<char> into) {
    if (given_ < head_.size()) {
      const size_t n = std::min(into.size(), head_.size() - given_);
      std::copy_n(head_.begin() + static_cast<ptrdiff_t>(given_), n, into.begin());
      given_ += n;
      return n;
    }
    return ReadFd(into);
  }

 private:
  absl::StatusOr<size_t> ReadFd(absl::Span<char> into) {
    while (true) {
      const ssize_t n = read(fd_.get(), into.data(), into.size());
      if (n >= 0) {
        consumed_ += n;
        return static_cast<size_t>(n);
      }
      if (errno != EINTR) {
        return ErrnoStatus(errno, absl::StrFormat("cannot read %s", name_));
      }
    }
  }

  std::string name_;
  UniqueFd fd_;
  std::string head_;
  size_t given_ = 0;  // Bytes of the head that were given.
  int64_t consumed_ = 0;
};

class PlainSource final : public ByteSource {
 public:
  explicit PlainSource(StoredBytes stored) : stored_(std::move(stored)) {}

  absl::StatusOr<size_t> Read(absl::Span<char> into) override {
    size_t done = 0;
    while (done < into.size()) {
      DT_ASSIGN_OR_RETURN(const size_t n, stored_.ReadSome(into.subspan(done)));
      if (n == 0) {
        break;
      }
      done += n;
    }
    return done;
  }
  int64_t bytes_consumed() const override { return stored_.consumed(); }

 private:
  StoredBytes stored_;
};

absl::Status Damaged(const std::string& name, const char* format, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: its %s data are damaged or cut: %s", name, format, why));
}

// One or more members of gzip, one after the other.
class GzipSource final : public ByteSource {
 public:
  explicit GzipSource(StoredBytes stored) : stored_(std::move(stored)), input_(kInputBytes, '\0') {
    constexpr int kGzipOnly = 16 + MAX_WBITS;
    is_ready_ = inflateInit2(&stream_, kGzipOnly) == Z_OK;
  }
  ~GzipSource() override { inflateEnd(&stream_); }
  GzipSource(const GzipSource&) = delete;
  GzipSource& operator=(const GzipSource&) = delete;

  absl::StatusOr<size_t> Read(absl::Span<char> into) override {
    if (!is_ready_) {
      return absl::ResourceExhaustedError("no memory to decompress " + stored_.name());
    }
    size_t done = 0;
    while (done < into.size()) {
      if (stream_.avail_in == 0) {
        DT_ASSIGN_OR_RETURN(const size_t n, stored_.ReadSome(absl::MakeSpan(input_)));
        if (n == 0) {
          return is_between_ ? absl::StatusOr<size_t>(done)
                             : Damaged(stored_.name(), "gzip", "they end inside a member");
        }
        stream_.next_in = reinterpret_cast<Bytef*>(input_.data());
        stream_.avail_in = static_cast<uInt>(n);
      }
      is_between_ = false;
      const size_t want = std::min(into.size() - done, kInputBytes);
      stream_.next_out = reinterpret_cast<Bytef*>(into.data() + done);
      stream_.avail_out = static_cast<uInt>(want);
      const int result = inflate(&stream_, Z_NO_FLUSH);
      done += want - stream_.avail_out;
      if (result == Z_STREAM_END) {
        is_between_ = true;
        inflateReset(&stream_);
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        return Damaged(stored_.name(), "gzip", stream_.msg != nullptr ? stream_.msg : "no reason");
      }
    }
    return done;
  }
  int64_t bytes_consumed() const override { return stored_.consumed(); }

 private:
  StoredBytes stored_;
  std::string input_;
  z_stream stream_{};
  bool is_ready_ = false;
  bool is_between_ = false;  // Two members, where the data may end.
};

class ZstdSource final : public ByteSource {
 public:
  explicit ZstdSource(StoredBytes stored)
      : stored_(std::move(stored)), input_(kInputBytes, '\0'), stream_(ZSTD_createDStream()) {}
  ~ZstdSource() override { ZSTD_freeDStream(stream_); }
  ZstdSource(const ZstdSource&) = delete;
  ZstdSource& operator=(const ZstdSource&) = delete;

  absl::StatusOr<size_t> Read(absl::Span<char> into) override {
    if (stream_ == nullptr) {
      return absl::ResourceExhaustedError("no memory to decompress " + stored_.name());
    }
    ZSTD_outBuffer out{into.data(), into.size(), 0};
    while (out.pos < out.size) {
      if (in_.pos == in_.size && !may_hold_more_) {
        DT_ASSIGN_OR_RETURN(const size_t n, stored_.ReadSome(absl::MakeSpan(input_)));
        if (n == 0) {
          return is_between_ ? absl::StatusOr<size_t>(out.pos)
                             : Damaged(stored_.name(), "Zstandard", "they end inside a frame");
        }
        in_ = {input_.data(), n, 0};
      }
      const size_t left = ZSTD_decompressStream(stream_, &out, &in_);
      if (ZSTD_isError(left) != 0) {
        return Damaged(stored_.name(), "Zstandard", ZSTD_getErrorName(left));
      }
      is_between_ = left == 0;
      may_hold_more_ = out.pos == out.size && !is_between_;  // Its own buffer may not be empty.
    }
    return out.pos;
  }
  int64_t bytes_consumed() const override { return stored_.consumed(); }

 private:
  StoredBytes stored_;
  std::string input_;
  ZSTD_DStream* stream_;
  ZSTD_inBuffer in_{nullptr, 0, 0};
  bool is_between_ = false;  // Two frames, where the data may end.
  bool may_hold_more_ = false;
};

// The rows of a Parquet file as lines.
class ParquetSource final : public ByteSource {
 public:
  explicit ParquetSource(std::unique_ptr<parquet::ParquetRows> rows) : rows_(std::move(rows)) {}

  absl::StatusOr<size_t> Read(absl::Span<char> into) override {
    size_t done = 0;
    while (done < into.size()) {
      if (given_ == line_.size()) {
        given_ = 0;
        DT_ASSIGN_OR_RETURN(const bool is_row, rows_->Next(&line_));
        if (!is_row) {
          line_.clear();
          break;
        }
        line_.push_back('\n');
      }
      const size_t n = std::min(into.size() - done, line_.size() - given_);
      std::memcpy(into.data() + done, line_.data() + given_, n);
      given_ += n;
      done += n;
    }
    return done;
  }
  int64_t bytes_consumed() const override { return rows_->bytes_consumed(); }
  bool has_rows() const override { return true; }
  int64_t SkipLines(int64_t lines) override { return rows_->SkipGroups(lines); }

 private:
  std::unique_ptr<parquet::ParquetRows> rows_;
  std::string line_;
  size_t given_ = 0;  // Bytes of the line that were given.
};

absl::StatusOr<std::unique_ptr<ByteSource>> OpenParquet(const std::string& path,
                                                        const RowColumns& columns) {
  if (path == kStandardInput) {
    return absl::InvalidArgumentError(
        "standard input is a Parquet file, whose table of contents is at its end; name the file");
  }
  DT_ASSIGN_OR_RETURN(auto rows, parquet::ParquetRows::Open(path, columns));
  return std::make_unique<ParquetSource>(std::move(rows));
}

// Kinds of files that are known and not read. Some of them are never text, so that a folder of text
// may have some among its files; others hold text in a form that people have to change.
struct Refused {
  absl::string_view magic;
  const char* what;
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
};
constexpr Refused kRefused[] = {
    {"ARROW1", "an Arrow file; write its text as Parquet or JSONL"},
    {"\x93NUMPY", "a NumPy file, which holds numbers and no text",
     absl::StatusCode::kUnimplemented},
    {"PK\x03\x04", "a zip archive, or a document that is one; unpack it",
     absl::StatusCode::kUnimplemented},
    {"BZh", "compressed by bzip2; use gzip or zstd"},
    {"\xfd"
     "7zXZ",
     "compressed by xz; use gzip or zstd"}};

}  // namespace

absl::StatusOr<std::unique_ptr<ByteSource>> ByteSource::Open(const std::string& path,
                                                             const RowColumns& columns) {
  const bool is_input = path == kStandardInput;
  UniqueFd fd;
  if (is_input) {
    fd = UniqueFd(fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0));
  } else {
    DT_ASSIGN_OR_RETURN(fd, OpenFile(path, O_RDONLY));
  }
  struct stat info {};
  if (fstat(fd.get(), &info) == 0 && S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrFormat("%s is a folder; want a file", path));
  }
  StoredBytes stored(is_input ? "standard input" : path, std::move(fd));
  DT_RETURN_IF_ERROR(stored.Peek(8));
  for (const Refused& refused : kRefused) {
    if (absl::StartsWith(stored.head(), refused.magic)) {
      return absl::Status(refused.code, absl::StrFormat("%s is %s", stored.name(), refused.what));
    }
  }
  if (absl::StartsWith(stored.head(), parquet::kMagic) ||
      absl::StartsWith(stored.head(), parquet::kEncryptedMagic)) {
    return OpenParquet(path, columns);
  }
  if (absl::StartsWith(stored.head(), "\x1f\x8b")) {
    return std::make_unique<GzipSource>(std::move(stored));
  }
  if (absl::StartsWith(stored.head(), "\x28\xb5\x2f\xfd")) {
    return std::make_unique<ZstdSource>(std::move(stored));
  }
  return std::make_unique<PlainSource>(std::move(stored));
}

}  // namespace dtrain::plan
