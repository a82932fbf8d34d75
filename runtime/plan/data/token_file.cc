#include "runtime/plan/data/token_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/file.h"
#include "base/status.h"
#include "runtime/plan/data/megatron_index.h"
#include "runtime/plan/data/raw_tokens.h"
#include "runtime/plan/data/widen_tokens.h"

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
  return TokenHeader{file_bytes / 2, 2, 0, 0, "nanogpt (no header)"};
}

// Says what to do with a file that has no llm.c header.
std::string WithoutHeader(absl::string_view head) {
  const std::string why_not = WhyNotRawU16(head);
  return why_not.empty() ? "raw u16 tokens need data.format nanogpt-u16" : why_not;
}

bool IsIndex(const std::string& path, DataStore* store) {
  if (path.empty() || (!IsRemoteAddress(path) && !FileExists(path))) {
    return false;
  }
  const absl::StatusOr<DataFile> file = DataFile::Open(path, "token index", store);
  const auto head = file.ok() ? file->Head(kMegatronHeaderBytes) : file.status();
  return head.ok() && absl::StartsWith(*head, kMegatronMagic);
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
  if (name == "megatron") {
    return TokenFormat::kMegatron;
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "token format \"%s\" is unknown; allowed: auto, llmc, nanogpt-u16, megatron", name));
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

std::string MakeTokenHeader(int64_t tokens, int64_t vocabulary, int bytes_per_token) {
  DT_CHECK(tokens >= 0 && tokens <= kTokensMax) << tokens << " tokens";
  DT_CHECK(bytes_per_token == 2 || bytes_per_token == 4) << bytes_per_token << " bytes";
  const bool is_wide = bytes_per_token == 4;
  DT_CHECK(vocabulary >= 0 && vocabulary <= (is_wide ? kTokensMax : 65536))
      << "vocabulary " << vocabulary;
  std::string header(static_cast<size_t>(kTokenHeaderBytes), '\0');
  const int32_t words[] = {is_wide ? kTokenMagicU32 : kTokenMagicU16,
                           is_wide ? kTokenVersionU32 : kTokenVersionU16,
                           static_cast<int32_t>(tokens), static_cast<int32_t>(vocabulary)};
  std::memcpy(header.data(), words, sizeof(words));
  return header;
}

absl::StatusOr<TokenFile> TokenFile::Open(const std::string& path, TokenFormat format,
                                          DataStore* store) {
  DT_ASSIGN_OR_RETURN(DataFile file, DataFile::Open(path, "token file", store));
  DT_ASSIGN_OR_RETURN(const std::string head, file.Head(kTokenHeaderBytes));
  const bool is_index = absl::StartsWith(head, kMegatronMagic);
  const std::string sibling = MegatronSibling(path);
  if (format == TokenFormat::kMegatron ||
      (format == TokenFormat::kAuto &&
       (is_index || (!HasLlmcHeader(head) && IsIndex(sibling, store))))) {
    if (sibling.empty()) {
      return file.Bad("Megatron's token files are two, named PREFIX.bin and PREFIX.idx");
    }
    if (is_index) {
      DT_ASSIGN_OR_RETURN(file, DataFile::Open(sibling, "token file", store));
    }
    DT_ASSIGN_OR_RETURN(const MegatronIndex index,
                        ReadMegatronIndex(is_index ? path : sibling, file.bytes(), store));
    return TokenFile(std::move(file), TokenHeader{.tokens = file.bytes() / index.bytes_per_token,
                                                  .bytes_per_token = index.bytes_per_token,
                                                  .format = "Megatron"});
  }
  DT_ASSIGN_OR_RETURN(const TokenHeader header, ParseTokenHeader(head, file.bytes(), path, format));
  return TokenFile(std::move(file), header);
}

absl::Status TokenFile::Copy(int64_t begin, absl::Span<int64_t> out, int64_t vocabulary) const {
  const auto count = static_cast<int64_t>(out.size());
  DT_CHECK(begin >= 0 && begin <= tokens() - count)
      << "tokens [" << begin << ", +" << count << ") of " << tokens() << " in " << path();
  // A block stays in the core's own cache until its ids are widened. A row has one id more than
  // its length, which is mostly a power of two: the last one takes no system call of its own.
  constexpr int64_t kBlockBytes = 32768 + 64;
  std::array<char, kBlockBytes> block;
  const int width = header_.bytes_per_token;
  for (int64_t done = 0; done < count;) {
    const int64_t tokens = std::min(count - done, kBlockBytes / width);
    const auto bytes = static_cast<size_t>(tokens * width);
    DT_RETURN_IF_ERROR(
        file_.ReadAt(header_.data_offset + (begin + done) * width, {block.data(), bytes}));
    const auto ids = out.subspan(static_cast<size_t>(done), static_cast<size_t>(tokens));
    if (!WidenTokens(block.data(), width, ids, vocabulary)) {
      return BeyondVocabulary(begin + done, ids, vocabulary);
    }
    done += tokens;
  }
  return absl::OkStatus();
}

absl::Status TokenFile::BeyondVocabulary(int64_t begin, absl::Span<const int64_t> ids,
                                         int64_t vocabulary) const {
  const auto bad =
      std::find_if(ids.begin(), ids.end(), [&](int64_t id) { return id < 0 || id >= vocabulary; });
  const int64_t token = begin + (bad - ids.begin());
  return file_.Bad(absl::StrFormat(
      "token %d (byte %d) is %d, not below the vocabulary of %d; "
      "is it of another tokenizer?",
      token, header_.data_offset + token * header_.bytes_per_token, *bad, vocabulary));
}

}  // namespace dtrain::plan
