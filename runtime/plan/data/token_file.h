// Token files: read-only, each open as long as its object lives. docs/DATA_FORMAT.md describes the
// formats.
//
// Errors name the file and the byte offset at which it stops being one. Thread-safe after Open.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/plan/data/data_file.h"

namespace dtrain::plan {

enum class TokenFormat {
  kAuto,        // llm.c u16 or u32 by the header's magic; Megatron's by the index beside it.
  kLlmc,        // The same, spelled out.
  kNanoGptU16,  // Raw u16 without a header; what it is not is refused (raw_tokens.h).
  kMegatron,    // Raw tokens, with PREFIX.idx beside PREFIX.bin (megatron_index.h).
};
// "auto", "llmc", "nanogpt-u16", "megatron" (data.format); InvalidArgument for another name.
absl::StatusOr<TokenFormat> TokenFormatFromName(absl::string_view name);

// The llm.c header: 256 int32. Word 3 is reserved there; dtrain's files keep the vocabulary in it.
inline constexpr int64_t kTokenHeaderBytes = 1024;
inline constexpr int32_t kTokenMagicU16 = 20240520;
inline constexpr int32_t kTokenVersionU16 = 1;
inline constexpr int32_t kTokenMagicU32 = 20240801;
inline constexpr int32_t kTokenVersionU32 = 7;
inline constexpr int64_t kTokensMax = (int64_t{1} << 31) - 1;  // The header's count is an int32.

// The facts of a header, checked against the file's size.
struct TokenHeader {
  int64_t tokens = 0;
  int bytes_per_token = 0;  // 2 or 4; 1, 2, 4 or 8 in Megatron's files.
  int64_t data_offset = 0;  // In bytes.
  int64_t vocabulary = 0;   // 0: the file does not say.
  const char* format = "llm.c";
};

// Reads the header of a file of `file_bytes` bytes that starts with `head` (at least
// min(file_bytes, 1024) bytes of it). Pure; any input is safe. InvalidArgument names `path`.
// REQUIRES: `format` is not kMegatron.
absl::StatusOr<TokenHeader> ParseTokenHeader(absl::string_view head, int64_t file_bytes,
                                             absl::string_view path, TokenFormat format);
// The 1024 bytes of a header; a token has 2 or 4 bytes. REQUIRES: 0 <= tokens <= kTokensMax, and 0
// <= vocabulary <= 65536 where a token has 2 bytes, kTokensMax where it has 4.
std::string MakeTokenHeader(int64_t tokens, int64_t vocabulary, int bytes_per_token = 2);

class TokenFile {
 public:
  // NotFound (no such file), InvalidArgument (empty, truncated, not of `format`). Of Megatron's two
  // files either may be named. `store`: for files at addresses; as DataFile::Open.
  static absl::StatusOr<TokenFile> Open(const std::string& path,
                                        TokenFormat format = TokenFormat::kAuto,
                                        DataStore* store = nullptr);
  const std::string& path() const { return file_.path(); }
  int64_t tokens() const { return header_.tokens; }
  const TokenHeader& header() const { return header_; }

  // The tokens [begin, begin + out.size()) as int64, the index type of LibTorch. InvalidArgument
  // with the file's length then and now when it has been cut since Open, and, with `vocabulary` >
  // 0, naming token offset and id when one is not below it; Unavailable when the file cannot be
  // read. REQUIRES: 0 <= begin, begin + out.size() <= tokens().
  absl::Status Copy(int64_t begin, absl::Span<int64_t> out, int64_t vocabulary = 0) const;
  // Says that these tokens will be read soon; as DataFile::WillRead.
  bool WillRead(int64_t begin, int64_t tokens) const {
    const int64_t width = header_.bytes_per_token;
    return file_.WillRead(header_.data_offset + begin * width, tokens * width);
  }

 private:
  TokenFile(DataFile file, const TokenHeader& header) : file_(std::move(file)), header_(header) {}
  // Names the first of `ids`, the tokens from `begin` on, that is not below `vocabulary`.
  // REQUIRES: there is one.
  absl::Status BeyondVocabulary(int64_t begin, absl::Span<const int64_t> ids,
                                int64_t vocabulary) const;

  DataFile file_;
  TokenHeader header_;
};

}  // namespace dtrain::plan
