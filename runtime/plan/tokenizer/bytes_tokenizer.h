// The tokenizer of models that are trained on bytes: 256 tokens, whose ids are the bytes, and 0
// ends a text. Pure.
//
// It is a byte-level BPE without merges, so that `tokenizers` and transformers read it too.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/plan/tokenizer/tokenizer.h"

namespace dtrain::plan {

// By this name command lines call it.
inline constexpr char kBytesTokenizer[] = "bytes";

// The files by which a model's folder has it, as {name, text}.
std::vector<std::pair<std::string, std::string>> BytesTokenizerFiles();

// What Tokenizer::Load gives of such a folder.
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeBytesTokenizer();

}  // namespace dtrain::plan
