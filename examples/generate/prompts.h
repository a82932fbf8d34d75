// The prompts of `dtrain generate`: from arguments, a file or standard input to tokens.
// Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/plan/data/text/chat_template.h"
#include "runtime/plan/tokenizer/tokenizer.h"

struct PromptOptions {
  std::optional<dtrain::plan::ChatTemplate> chat;  // Prompts are what a user says; none: texts.
  std::string system;                              // A chat begins with this; "": the template's.
};

// The prompts of `path`, or of standard input for "-": one on each line, or, where the name ends in
// .jsonl, the "prompt" of each line. Blank lines are left out. InvalidArgument names the line.
absl::StatusOr<std::vector<std::string>> ReadPrompts(const std::string& path);

struct Prompt {
  std::vector<uint32_t> ids;
  std::vector<uint32_t> stops;  // Tokens that end the answer, beside the tokenizer's.
};

// The tokens of `text`: with a template up to where the answer begins, else as transformers encodes
// it. InvalidArgument: the tokenizer lacks a token of the template.
absl::StatusOr<Prompt> EncodePrompt(const std::string& text, const PromptOptions& options,
                                    const dtrain::plan::Tokenizer& tokenizer);
