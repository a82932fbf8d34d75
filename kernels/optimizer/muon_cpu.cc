#include "base/check.h"
#include "kernels/optimizer/muon.h"
#include "kernels/optimizer/scaled_gradient.h"
#include "kernels/simd/simd_table.h"
#include "kernels/write_mode.h"

namespace dtrain::kernels {

MuonStepScalars MakeMuonStepScalars(const MuonOptions& options) {
  DT_CHECK(options.momentum >= 0 && options.momentum < 1) << " momentum " << options.momentum;
  return {.grad_scale = static_cast<float>(options.grad_scale),
          .grad_limit = LimitOrNone(options.grad_limit),
          .one_minus_momentum = static_cast<float>(1 - options.momentum),
          .share_of_state = static_cast<float>(options.nesterov ? options.momentum : 1),
          .decay = static_cast<float>(options.lr * options.weight_decay),
          .unused = {},
          .skip = 0,
          .lr = options.lr};
}

void MuonDirectionCpu(int64_t n, const float* g, float* s, float* direction,
                      const MuonOptions& options, ParallelFor parallel_for) {
  const MuonStepScalars scalars = MakeMuonStepScalars(options);
  const auto loop = ActiveTable().muon_direction;
  parallel_for(n, kElementGrain, [&](int64_t begin, int64_t end) {
    loop(end - begin, g + begin, s + begin, direction + begin, scalars);
  });
}

void MuonApplyCpu(int64_t n, float* p, const float* direction, BFloat16* p_bf16_or_null,
                  double scale, const MuonOptions& options, ParallelFor parallel_for) {
  const auto step = static_cast<float>(options.lr * scale);
  const auto decay = static_cast<float>(options.lr * options.weight_decay);
  const auto loop = ActiveTable().muon_apply;
  parallel_for(n, kElementGrain, [&](int64_t begin, int64_t end) {
    loop(end - begin, p + begin, direction + begin,
         p_bf16_or_null == nullptr ? nullptr : p_bf16_or_null + begin, step, decay);
  });
}

}  // namespace dtrain::kernels
