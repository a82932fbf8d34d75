// Rotary positions (Su et al. 2021) with the frequencies of the configuration: the tables that
// dtrain::ops::Rope takes. Not thread-safe.
#pragma once

#include <deque>

#include "ATen/core/Tensor.h"
#include "dtrain/ops.h"
#include "gpt/gpt_options.h"

// The angular frequencies, fp32 [head_dim / 2]: theta^(-2i/head_dim), stretched as rope.scaling
// says (linear: divided by factor; llama3: by wavelength, interpolated between the two limits). In
// fp32 throughout, as transformers computes them: at position 8,192 an angle in double precision
// would differ from the trained one by 1e-3.
at::Tensor RotaryFrequencies(const RopeOptions& rope, int64_t head_dim);

// The tables of angles of a model: one for each device, and a longer one when a longer sequence
// comes. No table is dropped, because a captured CUDA graph reads the table that it was captured
// with.
class RotaryTable {
 public:
  explicit RotaryTable(const GptOptions& options);

  // cos and sin of positions 0 to `sequence` - 1 or more, fp32 [positions, head_dim / 2] each, on
  // `device`.
  const dtrain::ops::RopeTable& UpTo(int64_t sequence, at::Device device);

 private:
  at::Tensor frequencies_;
  std::deque<dtrain::ops::RopeTable> tables_;
};
