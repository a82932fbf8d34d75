#include "runtime/plan/tokenizer/wordpiece/word_piece.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "runtime/plan/tokenizer/json_fields.h"

namespace dtrain::plan {
namespace {

bool IsInsideCharacter(char byte) { return (static_cast<uint8_t>(byte) & 0xc0) == 0x80; }

}  // namespace

absl::StatusOr<std::unique_ptr<WordPiece>> WordPiece::FromJson(
    const Json& model, const std::vector<std::pair<std::string, uint32_t>>& vocab) {
  DT_RETURN_IF_ERROR(
      OnlyFields(model, "model",
                 {"unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"}));
  DT_ASSIGN_OR_RETURN(const std::string unknown, StringField(model, "model", "unk_token"));
  DT_ASSIGN_OR_RETURN(const std::string prefix,
                      StringField(model, "model", "continuing_subword_prefix"));
  std::unique_ptr<WordPiece> made(new WordPiece());
  DT_ASSIGN_OR_RETURN(made->word_characters_max_,
                      CountField(model, "model", "max_input_chars_per_word"));
  for (const auto& [token, id] : vocab) {
    made->piece_bytes_max_ = std::max(made->piece_bytes_max_, token.size());
    made->first_.emplace(token, id);
    if (absl::StartsWith(token, prefix)) {
      made->later_.emplace(token.substr(prefix.size()), id);
    }
  }
  const auto found = made->first_.find(unknown);
  if (found == made->first_.end()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "model.unk_token: the token \"%s\" is not in model.vocab", unknown.substr(0, 100)));
  }
  made->unknown_ = found->second;
  return made;
}

void WordPiece::EncodeWord(absl::string_view word, std::vector<uint32_t>* ids) const {
  const auto inside = std::count_if(word.begin(), word.end(), IsInsideCharacter);
  const size_t before = ids->size();
  bool is_known = word.size() - static_cast<size_t>(inside) <= word_characters_max_;
  for (size_t begin = 0; is_known && begin < word.size();) {
    const auto& pieces = begin == 0 ? first_ : later_;
    is_known = false;
    for (size_t end = std::min(word.size(), begin + piece_bytes_max_); end > begin; --end) {
      if (end < word.size() && IsInsideCharacter(word[end])) {
        continue;
      }
      const auto found = pieces.find(word.substr(begin, end - begin));
      if (found != pieces.end()) {
        ids->push_back(found->second);
        is_known = true;
        begin = end;
        break;
      }
    }
  }
  if (!is_known) {
    ids->resize(before);
    ids->push_back(unknown_);
  }
}

}  // namespace dtrain::plan
