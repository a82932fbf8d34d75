// Makes a tokenizer of the text of a Hugging Face tokenizer.json, or of a tekken.json, which is
// JSON too and known by its fields.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/plan/tokenizer/tokenizer.h"

namespace dtrain::plan {

// `name` stands in messages. Truncation and padding in the file are ignored: a corpus wants all of
// a text. Errors as of Tokenizer::Load.
absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromJson(absl::string_view text,
                                                             const std::string& name);

}  // namespace dtrain::plan
