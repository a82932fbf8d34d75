// Makes a tokenizer of Mistral's tekken.json: ranks of bytes behind the ids of special tokens, and
// the regular expression by which text is cut.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "base/json.h"
#include "runtime/plan/tokenizer/tokenizer.h"

namespace dtrain::plan {

// Whether the document has the parts of such a file, and not those of a tokenizer.json.
bool IsTekken(const Json& document);

// What the file holds for images and sound is ignored. Errors as of Tokenizer::Load.
absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromTekken(const Json& document);

}  // namespace dtrain::plan
