// AdamW, and Adam with weight decay in the gradient, on flat buffers: unscale, clip, update and the
// bf16 working copy in one pass (28 bytes a parameter, 30 with the copy).
//
// Per element, with torch.optim.AdamW's formula (Loshchilov & Hutter 2019, arXiv 1711.05101):
//   g = gradient * grad_scale, limited to +-grad_limit
//   g = g + l2 p                                         (torch.optim.Adam's weight_decay)
//   m = m + (1 - beta1) (g - m)
//   v = beta2 v + (1 - beta2) g g
//   p = p - (lr weight_decay p + lr / (1 - beta1^step) * m / (sqrt(v / (1 - beta2^step)) + eps))
// Without bias_correction the two divisions by 1 - beta^step are left out.
// Moments in bf16 are read and rounded to nearest even; the update of p takes them as they were
// before that rounding. The last line adds both changes before p is touched, so p is rounded once:
// within 1 ulp of the fp64 formula (torch rounds p twice). Same bits on every SIMD variant, thread
// count, split and on CUDA, where a NaN is CUDA's own (cuda_table.h). Thread-safe on disjoint
// buffers; nothing is allocated.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/numeric/float16.h"
#include "base/threads/parallel_for.h"
#include "kernels/cuda/cuda_stream.h"

namespace dtrain::kernels {

// Doubles, because 1 - beta2 of an fp32 0.999 is off by 1e-5.
struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;      // Apart from the gradient.
  double l2 = 0;                // Weight decay added to the gradient.
  double grad_scale = 1;        // Multiplies the gradient: 1 / loss scale * clip factor.
  double grad_limit = 0;        // Largest magnitude of an element after that; 0: none.
  int64_t step = 1;             // Number of this update; the first is 1.
  bool bias_correction = true;  // False: the moments count as they are, as of an endless run.
};

// The numbers of one step's update, as the kernels read them. On a GPU it lives in device memory at
// a fixed address, one for each parameter group, so that a CUDA graph can hold the step: the host
// or a kernel changes its fields between replays.
struct AdamWStepScalars {
  float grad_scale;
  float grad_limit;
  float l2;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float step_size;                // lr / (1 - beta1^step).
  float inverse_sqrt_correction;  // 1 / sqrt(1 - beta2^step).
  float eps;
  float decay;   // lr * weight_decay.
  int32_t skip;  // CUDA only: not 0 leaves every buffer as it is (a non-finite gradient).
};

// Computed in fp64, each field rounded once. REQUIRES: step >= 1, betas in [0, 1).
AdamWStepScalars MakeAdamWStepScalars(const AdamWOptions& options);

// Updates p, m, v [n] in place from gradient g [n]; writes p as bf16 to p_bf16 unless it is null.
// No alignment is needed; buffers may not overlap. Weight decay differs by region: call once for
// each range of one parameter group.
void AdamWCpu(int64_t n, float* p, const float* g, float* m, float* v, BFloat16* p_bf16_or_null,
              const AdamWOptions& options, ParallelFor parallel_for);
void AdamWCpuBf16Grad(int64_t n, float* p, const BFloat16* g, float* m, float* v,
                      BFloat16* p_bf16_or_null, const AdamWOptions& options,
                      ParallelFor parallel_for);
// Moments in bf16: 20 bytes a parameter.
void AdamWCpuBf16State(int64_t n, float* p, const float* g, BFloat16* m, BFloat16* v,
                       BFloat16* p_bf16_or_null, const AdamWOptions& options,
                       ParallelFor parallel_for);

// AdamWCpu on device pointers. Queues one kernel on `stream`, does not synchronise; Internal when
// the launch fails. device_scalars is read when the kernel runs.
absl::Status AdamWCuda(int64_t n, float* p, const float* g, float* m, float* v,
                       BFloat16* p_bf16_or_null, const AdamWStepScalars* device_scalars,
                       CudaStream stream);
absl::Status AdamWCudaBf16Grad(int64_t n, float* p, const BFloat16* g, float* m, float* v,
                               BFloat16* p_bf16_or_null, const AdamWStepScalars* device_scalars,
                               CudaStream stream);
absl::Status AdamWCudaBf16State(int64_t n, float* p, const float* g, BFloat16* m, BFloat16* v,
                                BFloat16* p_bf16_or_null, const AdamWStepScalars* device_scalars,
                                CudaStream stream);

}  // namespace dtrain::kernels
