// Makes a tokenizer of SentencePiece's tokenizer.model: byte pairs are encoded here, many times
// faster than by its own library, which decodes, and encodes what SentencePieceBpe leaves to it.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/plan/tokenizer/tokenizer.h"

namespace dtrain::plan {

// `model` is the content of the file. InvalidArgument: the library does not read it; the message
// has `name`. Control symbols such as "<s>" are special tokens.
absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromSentencePiece(absl::string_view model,
                                                                      const std::string& name);

}  // namespace dtrain::plan
