// The element-wise ends of Muon on flat buffers: momentum before the matrix is orthogonalised, and
// the step along the result after it.
//
// Per element, as DeepSpeed's (Jordan 2024, kellerjordan.github.io/posts/muon):
//   g = gradient * grad_scale, limited to +-grad_limit
//   s = s + (1 - momentum) (g - s);  direction = nesterov: g + momentum (s - g); else s
//   p = p - lr (weight_decay p + scale * orthogonalised direction)
// Same bits on every SIMD variant, thread count, split and on CUDA, where a NaN is CUDA's own
// (cuda_table.h). Thread-safe on disjoint buffers; nothing is allocated.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "base/numeric/float16.h"
#include "base/threads/parallel_for.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/optimizer/adamw.h"

namespace dtrain::kernels {

struct MuonOptions {
  double lr = 0.02;
  double momentum = 0.95;
  double weight_decay = 0;
  bool nesterov = true;
  double grad_scale = 1;  // Multiplies the gradient: 1 / loss scale * clip factor.
  double grad_limit = 0;  // Largest magnitude of an element after that; 0: none.
};

// The numbers of one step's update. On a GPU they are at a fixed address, as AdamWStepScalars are,
// so that a CUDA graph can hold the step.
struct MuonStepScalars {
  float grad_scale;
  float grad_limit;
  float one_minus_momentum;
  float
      share_of_state;  // Its share of the direction; the gradient has the rest. 1 without nesterov.
  float decay;         // lr * weight_decay.
  float unused[5];
  int32_t skip;  // CUDA only: not 0 leaves every buffer as it is.
  double lr;
};
// The two take turns in one optimizer, and a step's verdict writes to one place.
static_assert(offsetof(MuonStepScalars, skip) == offsetof(AdamWStepScalars, skip));

// REQUIRES: momentum in [0, 1).
MuonStepScalars MakeMuonStepScalars(const MuonOptions& options);

// Updates the momentum s [n] and writes direction [n].
void MuonDirectionCpu(int64_t n, const float* g, float* s, float* direction,
                      const MuonOptions& options, ParallelFor parallel_for);

// Updates p [n] along direction [n], which is orthogonalised by now, times `scale`.
void MuonApplyCpu(int64_t n, float* p, const float* direction, BFloat16* p_bf16_or_null,
                  double scale, const MuonOptions& options, ParallelFor parallel_for);

// The same on device pointers. Queue one kernel on `stream`, do not synchronise; Internal when the
// launch fails.
absl::Status MuonDirectionCuda(int64_t n, const float* g, float* s, float* direction,
                               const MuonStepScalars* device_scalars, CudaStream stream);
absl::Status MuonApplyCuda(int64_t n, float* p, const float* direction, BFloat16* p_bf16_or_null,
                           double scale, const MuonStepScalars* device_scalars, CudaStream stream);

}  // namespace dtrain::kernels
