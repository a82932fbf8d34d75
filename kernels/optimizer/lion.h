// Lion on flat buffers: unscale, clip, update and the bf16 working copy in one pass.
//
// Per element (Chen et al. 2023, arXiv 2302.06675):
//   g = gradient * grad_scale, limited to +-grad_limit
//   c = s + (1 - beta1) (g - s);  s = s + (1 - beta2) (g - s)
//   p = p - lr (weight_decay p + sign(c))
// sign(0) is 0, as the paper has it (DeepSpeed's kernels move such an element by lr). Same bits on
// every SIMD variant, thread count, split and on CUDA, where a NaN is CUDA's own (cuda_table.h).
// Thread-safe on disjoint buffers; nothing is allocated.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/numeric/float16.h"
#include "base/threads/parallel_for.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/flat.h"

namespace dtrain::kernels {

struct LionOptions {
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;
  double grad_scale = 1;  // Multiplies the gradient: 1 / loss scale * clip factor.
  double grad_limit = 0;  // Largest magnitude of an element after that; 0: none.
};

// The numbers of one step's update. On a GPU they are at a fixed address, as AdamWStepScalars are,
// so that a CUDA graph can hold the step.
struct LionStepScalars {
  float grad_scale;
  float grad_limit;
  float one_minus_beta1;
  float one_minus_beta2;
  float step;    // lr.
  float decay;   // lr * weight_decay.
  int32_t skip;  // CUDA only: not 0 leaves every buffer as it is.
};

// REQUIRES: betas in [0, 1).
LionStepScalars MakeLionStepScalars(const LionOptions& options);

// Updates p [n] and the first moment [n], fp32 or bf16.
void LionCpu(int64_t n, float* p, const float* g, MutableFlat moment, BFloat16* p_bf16_or_null,
             const LionOptions& options, ParallelFor parallel_for);

// The same on device pointers. Queues one kernel on `stream`, does not synchronise; Internal when
// the launch fails.
absl::Status LionCuda(int64_t n, float* p, const float* g, MutableFlat moment,
                      BFloat16* p_bf16_or_null, const LionStepScalars* device_scalars,
                      CudaStream stream);

}  // namespace dtrain::kernels
