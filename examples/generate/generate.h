// Generates tokens with a model, one after the other, from a cache of the keys and values of those
// before. Not thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "generate/choose_token.h"
#include "gpt/gpt.h"

struct GenerateOptions {
  SamplingOptions sampling = {};
  uint64_t seed = 1;
  int64_t tokens_max = 256;
  std::vector<uint32_t> stops = {};  // Tokens that end a text.
};

struct Generated {
  enum class End { kStop, kTokensMax, kContext };
  std::vector<uint32_t> tokens;  // With the one that ended it.
  End end = End::kTokensMax;
  double prompt_s = 0;  // Until the first token was chosen.
  double others_s = 0;  // For all others.
};

// "stop", "length" or "context", the model's last position.
const char* NameOf(Generated::End end);

// Calls `give` with each token as soon as it is there, but not with one of `stops`. The model is in
// eval mode then, and afterwards as before. InvalidArgument: the prompt is empty, has a token that
// the model does not know, or leaves no position of the model's free; OutOfRange: the model's
// logits are not finite.
absl::StatusOr<Generated> Generate(GptImpl& model, absl::Span<const uint32_t> prompt,
                                   const GenerateOptions& options,
                                   absl::FunctionRef<void(uint32_t)> give);
