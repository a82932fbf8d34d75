// The "decoder" of a tokenizer.json: tokens to text. Immutable; thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/json.h"
#include "runtime/plan/tokenizer/regex.h"

namespace dtrain::plan {

class TokenDecoder {
 public:
  // Null gives one that puts a space between tokens, as `tokenizers` does. Unimplemented: a type or
  // field that is not known.
  static absl::StatusOr<TokenDecoder> FromJson(const Json& json);
  // The decoder of byte-level vocabularies.
  static TokenDecoder Bytes();

  std::string Decode(std::vector<std::string> tokens) const;

 private:
  enum class Kind { kBytes, kByteFallback, kFuse, kStrip, kReplace, kMetaspace, kWordPiece };
  struct Step {
    Kind kind = Kind::kFuse;
    std::vector<Regex> regex;  // What is replaced: one.
    std::string text;          // What stands for it; the character that is stripped; the mark.
    uint32_t start = 0;        // How many characters are stripped at most.
    uint32_t stop = 0;
    bool drops_first = false;  // Metaspace: marks of the first token are left out.
    bool cleans = false;       // WordPiece: no space before punctuation.
  };

  absl::Status Add(const Json& json, const std::string& where, int depth);
  static void Apply(const Step& step, std::vector<std::string>* tokens);

  std::vector<Step> steps_;
};

}  // namespace dtrain::plan
