#include <cmath>

#include "base/check.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/scaled_gradient.h"
#include "kernels/simd/simd_table.h"
#include "kernels/write_mode.h"

namespace dtrain::kernels {
namespace {

template <class G, class S, class Loop>
void Run(int64_t n, float* p, const G* g, S* m, S* v, BFloat16* p_bf16, const AdamWOptions& options,
         ParallelFor parallel_for, Loop loop) {
  const AdamWStepScalars scalars = MakeAdamWStepScalars(options);
  const Write write = WriteFor(n * static_cast<int64_t>(sizeof(BFloat16)), false);
  parallel_for(n, kElementGrain, [&](int64_t begin, int64_t end) {
    loop(end - begin, p + begin, g + begin, m + begin, v + begin,
         p_bf16 == nullptr ? nullptr : p_bf16 + begin, scalars, write);
  });
}

}  // namespace

AdamWStepScalars MakeAdamWStepScalars(const AdamWOptions& options) {
  DT_CHECK_GE(options.step, 1);
  DT_CHECK(options.beta1 >= 0 && options.beta1 < 1) << " beta1 " << options.beta1;
  DT_CHECK(options.beta2 >= 0 && options.beta2 < 1) << " beta2 " << options.beta2;
  const auto step = static_cast<double>(options.step);
  const bool corrected = options.bias_correction;
  const double correction1 = corrected ? 1 - std::pow(options.beta1, step) : 1;
  const double correction2 = corrected ? 1 - std::pow(options.beta2, step) : 1;
  return {.grad_scale = static_cast<float>(options.grad_scale),
          .grad_limit = LimitOrNone(options.grad_limit),
          .l2 = static_cast<float>(options.l2),
          .one_minus_beta1 = static_cast<float>(1 - options.beta1),
          .beta2 = static_cast<float>(options.beta2),
          .one_minus_beta2 = static_cast<float>(1 - options.beta2),
          .step_size = static_cast<float>(options.lr / correction1),
          .inverse_sqrt_correction = static_cast<float>(1 / std::sqrt(correction2)),
          .eps = static_cast<float>(options.eps),
          .decay = static_cast<float>(options.lr * options.weight_decay),
          .skip = 0};
}

void AdamWCpu(int64_t n, float* p, const float* g, float* m, float* v, BFloat16* p_bf16_or_null,
              const AdamWOptions& options, ParallelFor parallel_for) {
  Run(n, p, g, m, v, p_bf16_or_null, options, parallel_for, ActiveTable().adamw_f32);
}

void AdamWCpuBf16Grad(int64_t n, float* p, const BFloat16* g, float* m, float* v,
                      BFloat16* p_bf16_or_null, const AdamWOptions& options,
                      ParallelFor parallel_for) {
  Run(n, p, g, m, v, p_bf16_or_null, options, parallel_for, ActiveTable().adamw_bf16);
}

void AdamWCpuBf16State(int64_t n, float* p, const float* g, BFloat16* m, BFloat16* v,
                       BFloat16* p_bf16_or_null, const AdamWOptions& options,
                       ParallelFor parallel_for) {
  Run(n, p, g, m, v, p_bf16_or_null, options, parallel_for, ActiveTable().adamw_bf16_state);
}

}  // namespace dtrain::kernels
