// Which token follows, by the logits of a model: the most likely one, or one that is drawn. Pure;
// thread-safe.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"

// The names and meanings are those of transformers.
struct SamplingOptions {
  double temperature = 0;         // The logits are divided by it; 0: the most likely token, always.
  int64_t top_k = 0;              // Only so many of the most likely tokens are drawn from; 0: all.
  double top_p = 1;               // Only the most likely ones that together have this probability.
  double repetition_penalty = 1;  // Divides logits above 0 of tokens that came before, else times.
};

// Penalties beyond these limits leave the range of logits or repeat one token for ever.
inline bool IsRepetitionPenalty(double value) { return value >= 0.01 && value <= 100; }

// InvalidArgument names an option that is out of range.
absl::Status CheckSampling(const SamplingOptions& options);

// Changes the logits of the tokens in `seen`, each once, as CTRL's penalty does (Keskar et al.
// 2019, arXiv 1909.05858). REQUIRES: `seen` are below logits.size().
void PenaliseRepetition(absl::Span<const uint32_t> seen, double penalty, absl::Span<float> logits);

// A token of `logits`: without a temperature the first of the largest, else the one at `uniform`,
// from 0 to below 1, of the cumulative probabilities of the candidates, from the most likely on.
// Equal logits stand by their number. REQUIRES: there are logits, none is NaN; CheckSampling.
uint32_t ChooseToken(absl::Span<const float> logits, const SamplingOptions& options,
                     double uniform);
