// SGD with momentum on flat buffers: unscale, clip, update and the bf16 working copy in one pass.
//
// Per element, with torch.optim.SGD's rules:
//   g = gradient * grad_scale, limited to +-grad_limit, + weight_decay p
//   s = g in the first update, then momentum s + (1 - dampening) g
//   p = p - lr (nesterov: g + momentum s; else s; without momentum: g)
// Same bits on every SIMD variant, thread count, split and on CUDA, where a NaN is CUDA's own
// (cuda_table.h). Thread-safe on disjoint buffers; nothing is allocated.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/numeric/float16.h"
#include "base/threads/parallel_for.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/flat.h"

namespace dtrain::kernels {

struct SgdOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  double grad_scale = 1;  // Multiplies the gradient: 1 / loss scale * clip factor.
  double grad_limit = 0;  // Largest magnitude of an element after that; 0: none.
  int64_t step = 1;       // Number of this update; the first is 1.
};

// The numbers of one step's update. On a GPU they are at a fixed address, as AdamWStepScalars are,
// so that a CUDA graph can hold the step.
struct SgdStepScalars {
  float grad_scale;
  float grad_limit;
  float l2;
  float keep;           // Share of the state that stays: 0 in the first update.
  float take;           // Share of the gradient that is added to it.
  float step_of_state;  // -lr times the share of the state in the change of p.
  float step_of_grad;   // -lr times that of the gradient.
  int32_t skip;         // CUDA only: not 0 leaves every buffer as it is.
};

// REQUIRES: step >= 1; nesterov only with momentum and without dampening.
SgdStepScalars MakeSgdStepScalars(const SgdOptions& options);

// Updates p [n] and `momentum` [n], fp32 or bf16, whose data is null when options.momentum is 0.
void SgdCpu(int64_t n, float* p, const float* g, MutableFlat momentum, BFloat16* p_bf16_or_null,
            const SgdOptions& options, ParallelFor parallel_for);

// The same on device pointers. Queues one kernel on `stream`, does not synchronise; Internal when
// the launch fails.
absl::Status SgdCuda(int64_t n, float* p, const float* g, MutableFlat momentum,
                     BFloat16* p_bf16_or_null, const SgdStepScalars* device_scalars,
                     CudaStream stream);

}  // namespace dtrain::kernels
