// Adagrad on flat buffers: unscale, clip, update and the bf16 working copy in one pass.
//
// Per element, with torch.optim.Adagrad's formula (Duchi et al. 2011):
//   g = gradient * grad_scale, limited to +-grad_limit, + weight_decay p
//   s = s + g g
//   p = p - lr / (1 + (step - 1) lr_decay) * g / (sqrt(s) + eps)
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

struct AdagradOptions {
  double lr = 1e-2;
  double lr_decay = 0;
  double eps = 1e-10;
  double weight_decay = 0;
  double grad_scale = 1;  // Multiplies the gradient: 1 / loss scale * clip factor.
  double grad_limit = 0;  // Largest magnitude of an element after that; 0: none.
  int64_t step = 1;       // Number of this update; the first is 1.
};

// The numbers of one step's update. On a GPU they are at a fixed address, as AdamWStepScalars are,
// so that a CUDA graph can hold the step.
struct AdagradStepScalars {
  float grad_scale;
  float grad_limit;
  float l2;
  float step;  // lr / (1 + (step - 1) lr_decay).
  float eps;
  int32_t skip;  // CUDA only: not 0 leaves every buffer as it is.
};

// REQUIRES: step >= 1.
AdagradStepScalars MakeAdagradStepScalars(const AdagradOptions& options);

// Updates p [n] and the sum of squares [n], fp32 or bf16.
void AdagradCpu(int64_t n, float* p, const float* g, MutableFlat sum, BFloat16* p_bf16_or_null,
                const AdagradOptions& options, ParallelFor parallel_for);

// The same on device pointers. Queues one kernel on `stream`, does not synchronise; Internal when
// the launch fails.
absl::Status AdagradCuda(int64_t n, float* p, const float* g, MutableFlat sum,
                         BFloat16* p_bf16_or_null, const AdagradStepScalars* device_scalars,
                         CudaStream stream);

}  // namespace dtrain::kernels
