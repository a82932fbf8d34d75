// SentencePiece's normalizer: a map of characters (nmt_nfkc, identity, ...) that the model file
// holds as a trie, and its rules for white space. Immutable; thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "runtime/plan/tokenizer/sentencepiece/sentencepiece_proto.h"

namespace dtrain::plan {

// U+2581, which stands for a space in pieces.
inline constexpr absl::string_view kSentencePieceSpace = "\xE2\x96\x81";

class SentencePieceNormalizer {
 public:
  // nullopt: the map is damaged, or a rule is not known here.
  static std::optional<SentencePieceNormalizer> Create(const SentencePieceProto& proto);

  // Sets `normalized`, which is UTF-8. REQUIRES: `text` is UTF-8 and not in `normalized`.
  void Apply(absl::string_view text, std::string* normalized) const;

  // What the shortest key that begins `text` becomes by the map alone; nullopt: none begins it.
  std::optional<absl::string_view> ShortestMatch(absl::string_view text) const;

  // Whether the map leaves an ASCII character as it is before another one. REQUIRES: byte < 128.
  bool IsPlain(uint8_t byte) const { return is_plain_[byte]; }

 private:
  struct Match {
    size_t length = 0;         // Bytes of the text; 0: no key begins here.
    absl::string_view result;  // The text that they become.
  };

  bool ReadMap(absl::string_view charsmap);
  void FindPlainCharacters();
  // The last of the keys that begin `text`, or the first one.
  Match FindKey(absl::string_view text, bool longest) const;
  Match LongestMatch(absl::string_view text) const { return FindKey(text, /*longest=*/true); }
  // Normalizes the first character or key of `text`. REQUIRES: `text` is not empty.
  Match First(absl::string_view text) const;

  bool add_dummy_prefix_ = true;
  bool remove_extra_whitespaces_ = true;
  std::vector<uint32_t> trie_;  // A double array of darts-clone; empty: nothing is mapped.
  std::string results_;         // Each ends with a zero byte.
  // ASCII characters that stay as they are, unless a character beyond ASCII follows.
  std::array<bool, 128> is_plain_{};
};

}  // namespace dtrain::plan
