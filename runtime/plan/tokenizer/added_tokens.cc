#include "runtime/plan/tokenizer/added_tokens.h"

#include <algorithm>

#include "base/status.h"
#include "runtime/plan/tokenizer/json_fields.h"
#include "runtime/plan/tokenizer/unicode/char_classes.h"
#include "runtime/plan/tokenizer/unicode/regex_classes.h"
#include "runtime/plan/tokenizer/unicode/utf8_text.h"

namespace dtrain::plan {
namespace {

uint64_t EdgeOf(uint32_t node, char byte) {
  return uint64_t{node} << 8 | static_cast<uint8_t>(byte);
}

// \w of Rust's regex.
bool IsOfWord(uint32_t c) { return IsWordCharacter(c) || c == 0x200c || c == 0x200d; }

// The place of the last character before `end`. REQUIRES: end > 0.
size_t CharacterBefore(absl::string_view text, size_t end) {
  do {
    --end;
  } while ((static_cast<uint8_t>(text[end]) & 0xc0) == 0x80);
  return end;
}

bool IsWordBefore(absl::string_view text, size_t end) {
  if (end == 0) {
    return false;
  }
  size_t at = CharacterBefore(text, end);
  return IsOfWord(NextCodePoint(text, &at));
}

bool IsWordAfter(absl::string_view text, size_t begin) {
  return begin < text.size() && IsOfWord(NextCodePoint(text, &begin));
}

size_t SpacesBegin(absl::string_view text, size_t end) {
  while (end > 0) {
    const size_t at = CharacterBefore(text, end);
    size_t next = at;
    if ((CharClasses::Get().Of(NextCodePoint(text, &next)) & kSpace) == 0) {
      break;
    }
    end = at;
  }
  return end;
}

size_t SpacesEnd(absl::string_view text, size_t begin) {
  while (begin < text.size()) {
    size_t next = begin;
    if ((CharClasses::Get().Of(NextCodePoint(text, &next)) & kSpace) == 0) {
      break;
    }
    begin = next;
  }
  return begin;
}

}  // namespace

absl::StatusOr<AddedToken> AddedToken::FromJson(const Json& json, const std::string& where) {
  DT_RETURN_IF_ERROR(OnlyFields(
      json, where, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}));
  AddedToken token;
  DT_ASSIGN_OR_RETURN(token.content, StringField(json, where, "content"));
  DT_ASSIGN_OR_RETURN(token.id, CountField(json, where, "id"));
  DT_ASSIGN_OR_RETURN(token.single_word, BoolField(json, where, "single_word", false));
  DT_ASSIGN_OR_RETURN(token.lstrip, BoolField(json, where, "lstrip", false));
  DT_ASSIGN_OR_RETURN(token.rstrip, BoolField(json, where, "rstrip", false));
  DT_ASSIGN_OR_RETURN(token.special, BoolField(json, where, "special", false));
  DT_ASSIGN_OR_RETURN(token.normalized, BoolField(json, where, "normalized", !token.special));
  return token;
}

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens,
                                   const std::vector<std::string>& patterns)
    : tokens_(std::move(tokens)) {
  uint32_t nodes = 1;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    uint32_t node = 0;
    for (const char byte : patterns[i]) {
      const auto [found, is_new] = edges_.try_emplace(EdgeOf(node, byte), nodes);
      nodes += is_new ? 1 : 0;
      node = found->second;
    }
    if (node != 0) {
      begins_[static_cast<uint8_t>(patterns[i][0])] = true;
      ends_at_[node] = static_cast<uint32_t>(i);
    }
  }
  if (std::count(begins_.begin(), begins_.end(), true) == 1) {
    only_begin_ =
        static_cast<char>(std::find(begins_.begin(), begins_.end(), true) - begins_.begin());
  }
}

std::optional<AddedTokenFinder::Match> AddedTokenFinder::Next(absl::string_view text,
                                                              size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (only_begin_.has_value()) {
      begin = std::min(text.find(*only_begin_, begin), text.size());
    } else {
      while (begin < text.size() && !begins_[static_cast<uint8_t>(text[begin])]) {
        ++begin;
      }
    }
    std::optional<Match> longest;
    uint32_t node = 0;
    for (size_t end = begin; end < text.size();) {
      const auto edge = edges_.find(EdgeOf(node, text[end]));
      if (edge == edges_.end()) {
        break;
      }
      node = edge->second;
      ++end;
      if (const auto found = ends_at_.find(node); found != ends_at_.end()) {
        longest = {begin, end, &tokens_[found->second]};
      }
    }
    if (longest.has_value()) {
      return longest;
    }
  }
  return std::nullopt;
}

absl::Status AddedTokenFinder::ForEachPart(absl::string_view text, bool special_tokens,
                                           Visit visit) const {
  size_t done = 0;
  size_t from = 0;
  while (!ends_at_.empty()) {
    const std::optional<Match> match = Next(text, from);
    if (!match.has_value()) {
      break;
    }
    from = match->end;
    const AddedToken& token = *match->token;
    if ((token.special && !special_tokens) ||
        (token.single_word &&
         (IsWordBefore(text, match->begin) || IsWordAfter(text, match->end)))) {
      continue;
    }
    // As in `tokenizers`: the spaces that a token takes are sought in the whole text, so that the
    // next token may lie in them.
    const size_t begin =
        token.lstrip ? std::max(SpacesBegin(text, match->begin), done) : match->begin;
    const size_t end = token.rstrip ? SpacesEnd(text, match->end) : match->end;
    if (begin >= end) {  // A token before has taken these spaces.
      continue;
    }
    if (done < begin) {
      DT_RETURN_IF_ERROR(visit(text.substr(done, begin - done), nullptr));
    }
    DT_RETURN_IF_ERROR(visit(text.substr(begin, end - begin), &token));
    done = end;
  }
  return done < text.size() ? visit(text.substr(done), nullptr) : absl::OkStatus();
}

}  // namespace dtrain::plan
