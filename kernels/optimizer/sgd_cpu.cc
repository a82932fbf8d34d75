#include "base/check.h"
#include "kernels/optimizer/one_state_cpu.h"
#include "kernels/optimizer/scaled_gradient.h"
#include "kernels/optimizer/sgd.h"

namespace dtrain::kernels {

SgdStepScalars MakeSgdStepScalars(const SgdOptions& options) {
  DT_CHECK_GE(options.step, 1);
  DT_CHECK(!options.nesterov || (options.momentum > 0 && options.dampening == 0));
  const bool first = options.step == 1;
  const bool with_state = options.momentum != 0;
  const double of_state = !with_state ? 0 : options.nesterov ? options.momentum : 1;
  const double of_grad = with_state && !options.nesterov ? 0 : 1;
  return {.grad_scale = static_cast<float>(options.grad_scale),
          .grad_limit = LimitOrNone(options.grad_limit),
          .l2 = static_cast<float>(options.weight_decay),
          .keep = static_cast<float>(first ? 0 : options.momentum),
          .take = static_cast<float>(first ? 1 : 1 - options.dampening),
          .step_of_state = static_cast<float>(-options.lr * of_state),
          .step_of_grad = static_cast<float>(-options.lr * of_grad),
          .skip = 0};
}

void SgdCpu(int64_t n, float* p, const float* g, MutableFlat momentum, BFloat16* p_bf16_or_null,
            const SgdOptions& options, ParallelFor parallel_for) {
  DT_CHECK((momentum.data == nullptr) == (options.momentum == 0) || n == 0);
  RunOneState(n, p, g, momentum, p_bf16_or_null, MakeSgdStepScalars(options), ActiveTable().sgd,
              parallel_for);
}

}  // namespace dtrain::kernels
