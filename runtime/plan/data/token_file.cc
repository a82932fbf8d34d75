#include "runtime/plan/data/token_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/file.h"
#include "base/status.h"
#include "runtime/plan/data/raw_tokens.h"

namespace dtrain::plan {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

int32_t Word(absl::string_view head, int index) {
  int32_t word = 0;
  std::memcpy(&word, head.data() + 4 * index, sizeof(word));
  return word;
}

absl::Status Bad(absl::string_view path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrFormat("token file %s: %s", path, what));
}

absl::StatusOr<TokenHeader> ParseRaw(absl::string_view head, int64_t file_bytes,
                                     absl::string_view path) {
  if (const std::string why_not = WhyNotRawU16(head); !why_not.empty()) {
    return Bad(path, absl::StrCat("it is no file of the format nanogpt-u16: ", why_not));
  }
  if (file_bytes % 2 != 0) {
    return Bad(path, absl::StrFormat("%d bytes are no whole number of u16 tokens; it is cut at "
                                     "byte %d or not of the format nanogpt-u16",
                                     file_bytes, file_bytes - 1));
  }
  return TokenHeader{file_bytes / 2, 2, 0, 0};
}

// Says what to do with a file that has no llm.c header.
std::string WithoutHeader(absl::string_view head) {
  const std::string why_not = WhyNotRawU16(head);
  return why_not.empty() ? "raw u16 tokens need data.format nanogpt-u16" : why_not;
}

int64_t LoadToken(const char* data, int bytes_per_token, int64_t index) {
  if (bytes_per_token == 2) {
    uint16_t token = 0;
    std::memcpy(&token, data + 2 * index, sizeof(token));
    return token;
  }
  uint32_t token = 0;
  std::memcpy(&token, data + 4 * index, sizeof(token));
  return token;
}

}  // namespace

absl::StatusOr<TokenFormat> TokenFormatFromName(absl::string_view name) {
  if (name == "auto") {
    return TokenFormat::kAuto;
  }
  if (name == "llmc") {
    return TokenFormat::kLlmc;
  }
  if (name == "nanogpt-u16") {
    return TokenFormat::kNanoGptU16;
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("token format \"%s\" is unknown; allowed: auto, llmc, nanogpt-u16", name));
}

absl::StatusOr<TokenHeader> ParseTokenHeader(absl::string_view head, int64_t file_bytes,
                                             absl::string_view path, TokenFormat format) {
  if (file_bytes == 0) {
    return Bad(path, "it is empty");
  }
  if (format == TokenFormat::kNanoGptU16) {
    return ParseRaw(head, file_bytes, path);
  }
  if (file_bytes < kTokenHeaderBytes || head.size() < static_cast<size_t>(kTokenHeaderBytes)) {
    return Bad(path,
               absl::StrFormat("it ends at byte %d, inside the 1024-byte header%s", file_bytes,
                               HasLlmcHeader(head) ? "" : absl::StrCat("; ", WithoutHeader(head))));
  }
  TokenHeader header;
  header.data_offset = kTokenHeaderBytes;
  const int32_t magic = Word(head, 0);
  int32_t version_wanted = 0;
  if (magic == kTokenMagicU16) {
    header.bytes_per_token = 2;
    version_wanted = kTokenVersionU16;
  } else if (magic == kTokenMagicU32) {
    header.bytes_per_token = 4;
    version_wanted = kTokenVersionU32;
  } else {
    return Bad(path, absl::StrFormat("the magic at byte 0 is %d, want %d (u16) or %d (u32); %s",
                                     magic, kTokenMagicU16, kTokenMagicU32, WithoutHeader(head)));
  }
  if (Word(head, 1) != version_wanted) {
    return Bad(path, absl::StrFormat("the version at byte 4 is %d, want %d", Word(head, 1),
                                     version_wanted));
  }
  header.tokens = Word(head, 2);
  if (header.tokens < 0) {
    return Bad(path, absl::StrFormat("the token count at byte 8 is %d", header.tokens));
  }
  const int64_t want = kTokenHeaderBytes + header.tokens * header.bytes_per_token;
  if (file_bytes != want) {
    return Bad(path, absl::StrFormat("it %s at byte %d; its header promises %d tokens, %d bytes",
                                     file_bytes < want ? "is truncated" : "goes on and ends",
                                     file_bytes, header.tokens, want));
  }
  // llm.c leaves the word 0. Anything that cannot be a vocabulary is somebody else's use of it.
  const int64_t vocabulary = Word(head, 3);
  const int64_t ids = header.bytes_per_token == 2 ? 65536 : kTokensMax;
  header.vocabulary = vocabulary > 0 && vocabulary <= ids ? vocabulary : 0;
  return header;
}

std::string MakeTokenHeader(int64_t tokens, int64_t vocabulary) {
  DT_CHECK(tokens >= 0 && tokens <= kTokensMax) << tokens << " tokens";
  DT_CHECK(vocabulary >= 0 && vocabulary <= 65536) << "vocabulary " << vocabulary;
  std::string header(static_cast<size_t>(kTokenHeaderBytes), '\0');
  const int32_t words[] = {kTokenMagicU16, kTokenVersionU16, static_cast<int32_t>(tokens),
                           static_cast<int32_t>(vocabulary)};
  std::memcpy(header.data(), words, sizeof(words));
  return header;
}

absl::StatusOr<TokenFile> TokenFile::Open(const std::string& path, TokenFormat format) {
  TokenFile file;
  absl::StatusOr<UniqueFd> fd = OpenFile(path, O_RDONLY | O_NONBLOCK);  // Not a FIFO.
  if (!fd.ok()) {
    return Annotate(fd.status(), "token file");
  }
  file.path_ = path;
  file.fd_ = *std::move(fd);
  struct stat info {};
  if (fstat(file.fd_.get(), &info) != 0) {
    return ErrnoStatus(errno, absl::StrFormat("token file %s", path));
  }
  if (!S_ISREG(info.st_mode)) {
    return Bad(path, "it is not a regular file");
  }
  file.bytes_ = static_cast<int64_t>(info.st_size);
  std::string head(static_cast<size_t>(std::min(file.bytes_, kTokenHeaderBytes)), '\0');
  DT_RETURN_IF_ERROR(file.ReadAt(0, absl::MakeSpan(head)));
  DT_ASSIGN_OR_RETURN(file.header_, ParseTokenHeader(head, file.bytes_, path, format));
  return file;
}

absl::Status TokenFile::ReadAt(int64_t offset, absl::Span<char> into) const {
  size_t done = 0;
  while (done < into.size()) {
    const int64_t at = offset + static_cast<int64_t>(done);
    const ssize_t n = pread(fd_.get(), into.data() + done, into.size() - done, at);
    if (n < 0 && errno != EINTR) {
      const int error = errno;
      return ErrnoStatus(error, absl::StrFormat("token file %s: cannot read %d bytes at byte %d",
                                                path_, into.size() - done, at));
    }
    if (n == 0) {
      return EndedEarly();
    }
    done += n > 0 ? static_cast<size_t>(n) : 0;
  }
  return absl::OkStatus();
}

absl::Status TokenFile::EndedEarly() const {
  struct stat info {};
  const int64_t now = fstat(fd_.get(), &info) == 0 ? static_cast<int64_t>(info.st_size) : -1;
  return Bad(path_, absl::StrFormat("it had %d bytes when it was opened and has %d while it is "
                                    "read: it was cut or is written anew; restore it and start "
                                    "again, and replace such files by renaming, never in place",
                                    bytes_, now));
}

absl::Status TokenFile::Copy(int64_t begin, absl::Span<int64_t> out) const {
  const auto count = static_cast<int64_t>(out.size());
  DT_CHECK(begin >= 0 && begin <= tokens() - count)
      << "tokens [" << begin << ", +" << count << ") of " << tokens() << " in " << path_;
  constexpr int64_t kBlockBytes = 16384;
  std::array<char, kBlockBytes> block;
  const int width = header_.bytes_per_token;
  for (int64_t done = 0; done < count;) {
    const int64_t tokens = std::min(count - done, kBlockBytes / width);
    const auto bytes = static_cast<size_t>(tokens * width);
    DT_RETURN_IF_ERROR(ReadAt(header_.data_offset + (begin + done) * width, {block.data(), bytes}));
    for (int64_t i = 0; i < tokens; ++i) {
      out[static_cast<size_t>(done + i)] = LoadToken(block.data(), width, i);
    }
    done += tokens;
  }
  return absl::OkStatus();
}

absl::Status TokenFile::CheckIds(int64_t begin, absl::Span<const int64_t> ids,
                                 int64_t vocabulary) const {
  const auto bad =
      std::find_if(ids.begin(), ids.end(), [&](int64_t id) { return id >= vocabulary; });
  if (bad == ids.end()) {
    return absl::OkStatus();
  }
  const int64_t token = begin + (bad - ids.begin());
  return Bad(path_, absl::StrFormat("token %d (byte %d) is %d, not below the vocabulary of %d; "
                                    "is it of another tokenizer?",
                                    token, header_.data_offset + token * header_.bytes_per_token,
                                    *bad, vocabulary));
}

}  // namespace dtrain::plan
