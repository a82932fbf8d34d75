// The loss of a model over rows of tokens, and what follows from it. Not thread-safe.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "generate/eval_rows.h"
#include "gpt/gpt.h"
#include "runtime/plan/data/documents.h"

struct Evaluated {
  double loss_sum = 0;  // In nats, over all tokens that count.
  int64_t tokens = 0;   // The number of those tokens.
  int64_t rows = 0;

  double loss() const { return loss_sum / static_cast<double>(tokens); }
  double perplexity() const;
};

struct EvaluateOptions {
  int64_t batch = 4;     // Rows of one length that are computed together.
  int64_t rows_max = 0;  // 0: all.
  // Keeps attention inside documents of rows without a mask.
  dtrain::plan::DocumentRule documents = {};
};

// Reads each row once; `progress` is called after each batch. The model is in eval mode then, and
// afterwards as before. InvalidArgument: nothing counted.
absl::StatusOr<Evaluated> EvaluateRows(GptImpl& model, EvalRows& rows,
                                       const EvaluateOptions& options,
                                       absl::FunctionRef<void(const Evaluated&)> progress);
