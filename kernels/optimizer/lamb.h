// LAMB on flat buffers, in two passes with the norms of whole tensors between them.
//
// The rule is that of DeepSpeed's FusedLamb (You et al. 2019, arXiv 1904.00962), per element:
//   g = gradient * grad_scale, limited to +-grad_limit
//   m = m + (1 - beta1) (g - m);  v = beta2 v + (1 - beta2) g g
//   u = m / (sqrt(v) + eps) + weight_decay p
// and then, for each tensor with w = its weights before the update,
//   trust = |w| / |u|, within [min_coeff, max_coeff]; 1 where a norm is 0
//   p = p - lr sqrt(1 - beta2^step) / (1 - beta1^step) trust u
// Without bias_correction the step is lr trust u.
// Same bits on every SIMD variant, thread count and split at whole norm blocks (grad_norm.h).
// CUDA adds the squares in another order, so trust ratios agree to 1e-12; the moments' bits are the
// same, except that a NaN is CUDA's own (cuda_table.h). Thread-safe on disjoint buffers; nothing is
// allocated.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/numeric/float16.h"
#include "base/threads/parallel_for.h"
#include "kernels/cuda/cuda_stream.h"

namespace dtrain::kernels {

struct LambOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  double max_coeff = 10;
  double min_coeff = 0.01;
  double grad_scale = 1;  // Multiplies the gradient: 1 / loss scale * clip factor.
  double grad_limit = 0;  // Largest magnitude of an element after that; 0: none.
  int64_t step = 1;       // Number of this update; the first is 1.
  bool bias_correction = true;
};

// The numbers of one step's update. On a GPU they are at a fixed address, as AdamWStepScalars are,
// so that a CUDA graph can hold the step.
struct LambStepScalars {
  float grad_scale;
  float grad_limit;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float eps;
  float weight_decay;
  int32_t skip;      // CUDA only: not 0 leaves every buffer as it is.
  double step_size;  // lr with the bias corrections.
  double max_coeff;
  double min_coeff;
};

// REQUIRES: step >= 1, betas in [0, 1).
LambStepScalars MakeLambStepScalars(const LambOptions& options);

// Squares of weights and updates, summed in fp64.
struct LambSums {
  double weights = 0;
  double updates = 0;
};

// Updates the moments m, v [n] of weights p [n], and fills sums [NormBlocks(offset, n)] for each
// block of the elements, the first of which is the layout's element `offset`.
void LambMomentsCpu(int64_t n, int64_t offset, const float* p, const float* g, float* m, float* v,
                    LambSums* sums, const LambOptions& options, ParallelFor parallel_for);

// The trust ratio of the tensor that `sums` are of: the factor of its update.
double LambTrust(const LambSums& sums, const LambOptions& options);

// Updates p [n] from the new moments.
void LambApplyCpu(int64_t n, float* p, const float* m, const float* v, BFloat16* p_bf16_or_null,
                  double trust, const LambOptions& options, ParallelFor parallel_for);

// The same on device pointers. Queue one kernel on `stream`, do not synchronise; Internal when the
// launch fails. LambTrustCuda adds the `count` sums of one tensor and writes step size times trust
// to *trust_step, which LambApplyCuda reads.
absl::Status LambMomentsCuda(int64_t n, int64_t offset, const float* p, const float* g, float* m,
                             float* v, LambSums* sums, const LambStepScalars* device_scalars,
                             CudaStream stream);
absl::Status LambTrustCuda(const LambSums* sums, int64_t count,
                           const LambStepScalars* device_scalars, float* trust_step,
                           CudaStream stream);
absl::Status LambApplyCuda(int64_t n, float* p, const float* m, const float* v,
                           BFloat16* p_bf16_or_null, const float* trust_step,
                           const LambStepScalars* device_scalars, CudaStream stream);

}  // namespace dtrain::kernels
