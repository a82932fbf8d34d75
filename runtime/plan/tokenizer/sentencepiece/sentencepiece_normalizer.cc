#include "runtime/plan/tokenizer/sentencepiece/sentencepiece_normalizer.h"

#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "runtime/plan/tokenizer/unicode/utf8_text.h"

namespace dtrain::plan {
namespace {

// The fields of a unit of darts-clone's double array.
bool UnitHasLeaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t UnitValue(uint32_t unit) { return unit & 0x7fffffff; }
uint32_t UnitLabel(uint32_t unit) { return unit & 0x800000ff; }
uint32_t UnitOffset(uint32_t unit) { return unit >> 10 << ((unit & 0x200) >> 6); }

bool IsContinuation(char byte) { return (static_cast<uint8_t>(byte) & 0xc0) == 0x80; }

}  // namespace

std::optional<SentencePieceNormalizer> SentencePieceNormalizer::Create(
    const SentencePieceProto& proto) {
  SentencePieceNormalizer normalizer;
  normalizer.add_dummy_prefix_ = proto.add_dummy_prefix;
  normalizer.remove_extra_whitespaces_ = proto.remove_extra_whitespaces;
  if (proto.whitespace_is_suffix || !proto.escape_whitespaces ||
      !normalizer.ReadMap(proto.charsmap)) {
    return std::nullopt;
  }
  normalizer.FindPlainCharacters();
  return normalizer;
}

// The bytes of the trie as a 32-bit number, the trie, the results.
bool SentencePieceNormalizer::ReadMap(absl::string_view charsmap) {
  if (charsmap.empty()) {
    return true;
  }
  uint32_t trie_bytes = 0;
  if (charsmap.size() < sizeof(trie_bytes)) {
    return false;
  }
  std::memcpy(&trie_bytes, charsmap.data(), sizeof(trie_bytes));
  charsmap.remove_prefix(sizeof(trie_bytes));
  if (trie_bytes == 0 || trie_bytes % sizeof(uint32_t) != 0 || trie_bytes > charsmap.size()) {
    return false;
  }
  trie_.resize(trie_bytes / sizeof(uint32_t));
  std::memcpy(trie_.data(), charsmap.data(), trie_bytes);
  results_ = std::string(charsmap.substr(trie_bytes));
  std::string repaired;
  return !results_.empty() && results_.back() == '\0' &&
         RepairedUtf8(results_, &repaired).data() == results_.data();
}

void SentencePieceNormalizer::FindPlainCharacters() {
  for (int first = 1; first < 128; ++first) {
    std::string text(1, static_cast<char>(first));
    const Match alone = LongestMatch(text);
    bool plain = first != ' ' && (alone.length == 0 || alone.result == text);
    text.push_back('\0');
    for (int second = 0; plain && second < 128 && !trie_.empty(); ++second) {
      // A key may go on behind the second character, so that the way through the trie counts and
      // not its end.
      uint32_t node = UnitOffset(trie_[0]) ^ static_cast<uint32_t>(first);
      if (node >= trie_.size() || UnitLabel(trie_[node]) != static_cast<uint32_t>(first)) {
        break;
      }
      node ^= UnitOffset(trie_[node]) ^ static_cast<uint32_t>(second);
      plain = node >= trie_.size() || UnitLabel(trie_[node]) != static_cast<uint32_t>(second);
    }
    is_plain_[static_cast<size_t>(first)] = plain;
  }
}

SentencePieceNormalizer::Match SentencePieceNormalizer::FindKey(absl::string_view text,
                                                                bool longest) const {
  Match match;
  if (trie_.empty()) {
    return match;
  }
  uint32_t node = UnitOffset(trie_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    node ^= byte;
    if (node >= trie_.size() || UnitLabel(trie_[node]) != byte) {
      break;
    }
    const uint32_t unit = trie_[node];
    node ^= UnitOffset(unit);
    if (!UnitHasLeaf(unit) || node >= trie_.size()) {
      continue;
    }
    const uint32_t at = UnitValue(trie_[node]);
    // A damaged map may point into a character, of the results or of the text.
    const bool cuts_text = i + 1 < text.size() && IsContinuation(text[i + 1]);
    if (at < results_.size() && !IsContinuation(results_[at]) && !cuts_text) {
      match.length = i + 1;
      match.result = absl::string_view(results_.data() + at);
      if (!longest) {
        break;
      }
    }
  }
  return match;
}

std::optional<absl::string_view> SentencePieceNormalizer::ShortestMatch(
    absl::string_view text) const {
  const Match match = FindKey(text, /*longest=*/false);
  return match.length == 0 ? std::nullopt : std::optional(match.result);
}

SentencePieceNormalizer::Match SentencePieceNormalizer::First(absl::string_view text) const {
  Match match = LongestMatch(text);
  if (match.length == 0) {
    match.length = Utf8Length(text[0]);
    match.result = text.substr(0, match.length);
  }
  return match;
}

void SentencePieceNormalizer::Apply(absl::string_view text, std::string* normalized) const {
  normalized->clear();
  while (remove_extra_whitespaces_ && !text.empty()) {
    const Match match = First(text);
    if (match.result != " ") {
      break;
    }
    text.remove_prefix(match.length);
  }
  if (text.empty()) {
    return;
  }
  normalized->reserve(text.size() + text.size() / 2);
  if (add_dummy_prefix_) {
    normalized->append(kSentencePieceSpace.data(), kSentencePieceSpace.size());
  }
  bool behind_space = remove_extra_whitespaces_;
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<uint8_t>(text[i]);
    if (byte < 128 && is_plain_[byte] &&
        (i + 1 == text.size() || static_cast<uint8_t>(text[i + 1]) < 128)) {
      normalized->push_back(text[i++]);
      behind_space = false;
      continue;
    }
    const Match match = First(text.substr(i));
    i += match.length;
    absl::string_view result = match.result;
    while (behind_space && absl::ConsumePrefix(&result, " ")) {
    }
    for (const char c : result) {
      if (c == ' ') {
        normalized->append(kSentencePieceSpace.data(), kSentencePieceSpace.size());
      } else {
        normalized->push_back(c);
      }
    }
    if (!result.empty()) {
      behind_space = remove_extra_whitespaces_ && result.back() == ' ';
    }
  }
  while (remove_extra_whitespaces_ && absl::EndsWith(*normalized, kSentencePieceSpace)) {
    normalized->resize(normalized->size() - kSentencePieceSpace.size());
  }
}

}  // namespace dtrain::plan
