#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/optimizer/grad_norm.h"
#include "kernels/optimizer/lamb.h"
#include "kernels/optimizer/lamb_math.h"
#include "kernels/optimizer/scaled_gradient.h"
#include "kernels/simd/simd_table.h"
#include "kernels/write_mode.h"

namespace dtrain::kernels {
namespace {

constexpr int64_t kNormBlockGrain = kElementGrain / kNormBlock;

}  // namespace

LambStepScalars MakeLambStepScalars(const LambOptions& options) {
  DT_CHECK(options.beta1 >= 0 && options.beta1 < 1) << " beta1 " << options.beta1;
  DT_CHECK(options.beta2 >= 0 && options.beta2 < 1) << " beta2 " << options.beta2;
  DT_CHECK_GE(options.step, 1);
  const auto step = static_cast<double>(options.step);
  return {.grad_scale = static_cast<float>(options.grad_scale),
          .grad_limit = LimitOrNone(options.grad_limit),
          .one_minus_beta1 = static_cast<float>(1 - options.beta1),
          .beta2 = static_cast<float>(options.beta2),
          .one_minus_beta2 = static_cast<float>(1 - options.beta2),
          .eps = static_cast<float>(options.eps),
          .weight_decay = static_cast<float>(options.weight_decay),
          .skip = 0,
          .step_size = options.bias_correction
                           ? options.lr * std::sqrt(1 - std::pow(options.beta2, step)) /
                                 (1 - std::pow(options.beta1, step))
                           : options.lr,
          .max_coeff = options.max_coeff,
          .min_coeff = options.min_coeff};
}

void LambMomentsCpu(int64_t n, int64_t offset, const float* p, const float* g, float* m, float* v,
                    LambSums* sums, const LambOptions& options, ParallelFor parallel_for) {
  const LambStepScalars scalars = MakeLambStepScalars(options);
  const auto moments = ActiveTable().lamb_moments;
  const int64_t first_block = offset / kNormBlock;
  parallel_for(NormBlocks(offset, n), kNormBlockGrain, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t block_start = (first_block + block) * kNormBlock - offset;
      const int64_t from = std::max<int64_t>(block_start, 0);
      const int64_t to = std::min(block_start + kNormBlock, n);
      sums[block] = moments(to - from, p + from, g + from, m + from, v + from, scalars);
    }
  });
}

double LambTrust(const LambSums& sums, const LambOptions& options) {
  return LambTrustOf(sums, options.min_coeff, options.max_coeff);
}

void LambApplyCpu(int64_t n, float* p, const float* m, const float* v, BFloat16* p_bf16_or_null,
                  double trust, const LambOptions& options, ParallelFor parallel_for) {
  const LambStepScalars scalars = MakeLambStepScalars(options);
  const auto step = static_cast<float>(scalars.step_size * trust);
  const auto apply = ActiveTable().lamb_apply;
  parallel_for(n, kElementGrain, [&](int64_t begin, int64_t end) {
    apply(end - begin, p + begin, m + begin, v + begin,
          p_bf16_or_null == nullptr ? nullptr : p_bf16_or_null + begin, scalars, step);
  });
}

}  // namespace dtrain::kernels
