#include "runtime/plan/data/raw_tokens.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/plan/data/token_file.h"

namespace dtrain::plan {
namespace {

struct Magic {
  absl::string_view bytes;
  const char* what;
};
constexpr Magic kMagics[] = {
    {"\x93NUMPY", "a NumPy file (.npy)"},
    {"PK\x03\x04", "a zip archive (.npz, .pt)"},
    {"\x1f\x8b", "compressed by gzip"},
    {"\x28\xb5\x2f\xfd", "compressed by zstd"},
    {"ARROW1", "an Arrow file"},
    {"MMIDIDX", "a Megatron index"},
    {"PAR1", "a Parquet file, of whose texts dtrain data prepare makes tokens"},
};

int32_t WordAt(absl::string_view head, size_t index) {
  int32_t word = 0;
  std::memcpy(&word, head.data() + 4 * index, sizeof(word));
  return word;
}

// Whether the tokens look like ids of 4 or 8 bytes: each second u16 is 0, or as small as the upper
// half of an id below 262,144, while the others are not.
bool AreWiderIds(absl::string_view head) {
  constexpr size_t kPairsMin = 8;
  constexpr uint32_t kUpperMax = 3;
  const size_t pairs = head.size() / 4;
  bool some_lower = false;
  for (size_t i = 0; i < pairs; ++i) {
    const auto pair = static_cast<uint32_t>(WordAt(head, i));
    if ((pair >> 16) > kUpperMax) {
      return false;
    }
    some_lower = some_lower || (pair & 0xffff) > kUpperMax;
  }
  return pairs >= kPairsMin && some_lower;
}

bool IsText(absl::string_view head) {
  constexpr size_t kMin = 64;
  return head.size() >= kMin && std::all_of(head.begin(), head.end(), [](char c) {
           return absl::ascii_isprint(static_cast<unsigned char>(c)) ||
                  absl::ascii_isspace(static_cast<unsigned char>(c));
         });
}

}  // namespace

bool HasLlmcHeader(absl::string_view head) {
  if (head.size() < 4) {
    return false;
  }
  const int32_t magic = WordAt(head, 0);
  return magic == kTokenMagicU16 || magic == kTokenMagicU32;
}

std::string WhyNotRawU16(absl::string_view head) {
  if (HasLlmcHeader(head)) {
    return "it has an llm.c header; set data.format to auto";
  }
  for (const Magic& magic : kMagics) {
    if (absl::StartsWith(head, magic.bytes)) {
      return absl::StrCat("it is ", magic.what,
                          "; write its ids as plain u16, or with an llm.c header");
    }
  }
  if (AreWiderIds(head)) {
    return "each second u16 is 0 to 3, as in ids of 32 or 64 bits; write them as u16, or as u32 "
           "behind an llm.c header";
  }
  if (IsText(head)) {
    return "it is text; dtrain data prepare makes tokens of text";
  }
  return "";
}

}  // namespace dtrain::plan
