// The normalizer "Precompiled": SentencePiece's map of characters as `tokenizers` applies it, to
// whole graphemes of less than six bytes and else to characters. Immutable; thread-safe.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/json.h"
#include "runtime/plan/tokenizer/sentencepiece/sentencepiece_normalizer.h"

namespace dtrain::plan {

class PrecompiledMap {
 public:
  static absl::StatusOr<PrecompiledMap> FromJson(const Json& json, const std::string& where);

  // REQUIRES: `text` is UTF-8.
  std::string Apply(absl::string_view text) const;

 private:
  explicit PrecompiledMap(SentencePieceNormalizer map) : map_(std::move(map)) {}

  // Appends what `grapheme` becomes.
  void AppendMapped(absl::string_view grapheme, std::string* out) const;

  SentencePieceNormalizer map_;
};

}  // namespace dtrain::plan
