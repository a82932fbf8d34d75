#include "base/check.h"
#include "kernels/optimizer/lion.h"
#include "kernels/optimizer/one_state_cpu.h"
#include "kernels/optimizer/scaled_gradient.h"

namespace dtrain::kernels {

LionStepScalars MakeLionStepScalars(const LionOptions& options) {
  DT_CHECK(options.beta1 >= 0 && options.beta1 < 1) << " beta1 " << options.beta1;
  DT_CHECK(options.beta2 >= 0 && options.beta2 < 1) << " beta2 " << options.beta2;
  return {.grad_scale = static_cast<float>(options.grad_scale),
          .grad_limit = LimitOrNone(options.grad_limit),
          .one_minus_beta1 = static_cast<float>(1 - options.beta1),
          .one_minus_beta2 = static_cast<float>(1 - options.beta2),
          .step = static_cast<float>(options.lr),
          .decay = static_cast<float>(options.lr * options.weight_decay),
          .skip = 0};
}

void LionCpu(int64_t n, float* p, const float* g, MutableFlat moment, BFloat16* p_bf16_or_null,
             const LionOptions& options, ParallelFor parallel_for) {
  RunOneState(n, p, g, moment, p_bf16_or_null, MakeLionStepScalars(options), ActiveTable().lion,
              parallel_for);
}

}  // namespace dtrain::kernels
