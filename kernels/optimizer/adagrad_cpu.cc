#include "base/check.h"
#include "kernels/optimizer/adagrad.h"
#include "kernels/optimizer/one_state_cpu.h"
#include "kernels/optimizer/scaled_gradient.h"

namespace dtrain::kernels {

AdagradStepScalars MakeAdagradStepScalars(const AdagradOptions& options) {
  DT_CHECK_GE(options.step, 1);
  const double slowed = 1 + static_cast<double>(options.step - 1) * options.lr_decay;
  return {.grad_scale = static_cast<float>(options.grad_scale),
          .grad_limit = LimitOrNone(options.grad_limit),
          .l2 = static_cast<float>(options.weight_decay),
          .step = static_cast<float>(options.lr / slowed),
          .eps = static_cast<float>(options.eps),
          .skip = 0};
}

void AdagradCpu(int64_t n, float* p, const float* g, MutableFlat sum, BFloat16* p_bf16_or_null,
                const AdagradOptions& options, ParallelFor parallel_for) {
  RunOneState(n, p, g, sum, p_bf16_or_null, MakeAdagradStepScalars(options), ActiveTable().adagrad,
              parallel_for);
}

}  // namespace dtrain::kernels
