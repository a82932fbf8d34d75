// The text that a training shows at its end, in the vocabulary of its model. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "dtrain/dtrain.h"
#include "gpt/gpt.h"

struct SampleOptions {
  // Nothing: "#include <" for bytes, else the beginning of a document.
  std::optional<std::string> prompt = {};
  int64_t tokens = 300;  // 0: no sample.
  double temperature = 0.8;
  int64_t top_k = 40;  // 0: all.
  // A folder or file; "bytes": tokens are bytes. "": the same, or their text is not known.
  std::string tokenizer = "";

  // Reads "prompt", "tokens" (for bytes also "bytes"), "temperature", "top_k" and "tokenizer" of a
  // run's "sample". InvalidArgument names an unknown key or a value of another type.
  static absl::StatusOr<SampleOptions> FromJson(const dtrain::Json& json);
};

// Whether a sample is asked for, and its tokens have a text that is known: by a tokenizer, or as
// bytes.
bool ShowsText(const GptOptions& model, const SampleOptions& options);

// A prompt and what the model writes after it, for people: with bytes as tokens, what is not
// printable ASCII is a point. The errors of the tokenizer and of Generate. REQUIRES: ShowsText.
absl::StatusOr<std::string> SampleText(GptImpl& model, const SampleOptions& options);
