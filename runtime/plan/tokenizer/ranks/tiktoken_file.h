// Makes a tokenizer of a tiktoken file: a line for each token, base64 of its bytes and its rank.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/plan/tokenizer/tokenizer.h"

namespace dtrain::plan {

// The file says neither how text is cut nor which special tokens there are. Both are known by the
// number of ranks for r50k_base, p50k_base, cl100k_base, o200k_base, Llama 3, Llama 4 and Qwen; for
// other files options.pattern must say how to cut, and there are no special tokens.
// InvalidArgument: it is damaged. Unimplemented: it is none of these, and there is no pattern.
absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromTiktoken(absl::string_view text,
                                                                 const std::string& name,
                                                                 const TokenizerOptions& options);

// Whether `text` begins as such a file does.
bool LooksLikeTiktoken(absl::string_view text);

}  // namespace dtrain::plan
