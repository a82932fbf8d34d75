// BERT's normalizer, as `tokenizers` has it: by the Unicode version of its tables. Immutable;
// thread-safe.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/json.h"

namespace dtrain::plan {

class BertNormalizer {
 public:
  bool clean_text = true;            // Without control characters; each space is " ".
  bool handle_chinese_chars = true;  // Each stands between spaces.
  bool strip_accents = true;
  bool lowercase = true;

  static absl::StatusOr<BertNormalizer> FromJson(const Json& json, const std::string& where);

  // REQUIRES: `text` is UTF-8.
  std::string Apply(absl::string_view text) const;

 private:
  // The first two changes.
  std::string Cleaned(absl::string_view text) const;
};

}  // namespace dtrain::plan
