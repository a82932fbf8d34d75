// A Hugging Face folder's model together with its tokenizer, for programs that read and write text.
// Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gpt/gpt.h"
#include "runtime/plan/data/text/text_encoder.h"
#include "runtime/plan/tokenizer/tokenizer.h"

struct TextFolder {
  std::string path;
  Gpt model{nullptr};
  std::unique_ptr<dtrain::plan::Tokenizer> tokenizer;
  std::string tokenizer_name;  // For messages: "the tokenizer in FOLDER".

  const GptOptions& options() const { return model->options(); }
};

struct TextFolderOptions {
  std::string path;       // The model's folder.
  std::string type;       // "float32" or "bfloat16".
  std::string tokenizer;  // A folder or file; "bytes": tokens are bytes. "": the model's own.
};

// The errors of ReadModelFolder and Tokenizer::Load; NotFound says what to give if the model has no
// tokenizer; InvalidArgument with both sizes if it is another model's.
absl::StatusOr<TextFolder> OpenTextFolder(const TextFolderOptions& options);

// The settings of generation_config.json that Generate can follow: the repetition penalty, and
// settings that change even the most likely tokens and that it cannot do, by name.
struct GenerationDefaults {
  double repetition_penalty = 1;
  std::vector<std::string> ignored;
};
absl::StatusOr<GenerationDefaults> ReadGenerationDefaults(const std::string& folder);

// `tokenizer`, which must outlive it, as corpora are made with it: no text becomes a special token.
// Documents end with its end token; with token 0 if it has none.
std::unique_ptr<dtrain::plan::TextEncoder> EncoderOf(const dtrain::plan::Tokenizer& tokenizer);
