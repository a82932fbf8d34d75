// Makes a tokenizer of SentencePiece's tokenizer.model: natively, or by its library where
// NativeCodec does not do what the model needs.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/plan/tokenizer/tokenizer.h"

namespace dtrain::plan {

// `model` is the content of the file. InvalidArgument: it is damaged, or needs the library and
// the program is linked without it; the message has `name`. Control symbols such as "<s>" are
// special tokens.
absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromSentencePiece(absl::string_view model,
                                                                      const std::string& name);

}  // namespace dtrain::plan
