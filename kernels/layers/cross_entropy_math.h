// The scalar math of a row of cross-entropy, which CPU and CUDA share: the loss from the row's
// sums, and the coefficients of its gradient. Each form has its own loops over the vocabulary.
#pragma once

#include <cstdint>

#include "kernels/host_device.h"
#include "kernels/layers/cross_entropy.h"

namespace dtrain::kernels {

// dx_j = e^(x_j - lse) * along_p + everywhere, and at the target `at_target` more.
struct CrossEntropyRowGradient {
  float along_p;
  float everywhere;
  float at_target;
};

DT_HOST_DEVICE inline bool TargetInRange(int64_t target, int64_t vocab) {
  return static_cast<uint64_t>(target) < static_cast<uint64_t>(vocab);
}

// `logit_sum` is used with label smoothing only.
DT_HOST_DEVICE inline float CrossEntropyRowLoss(float lse, float target_logit, double logit_sum,
                                                int64_t vocab, const CrossEntropyOptions& options) {
  const double smoothing = options.label_smoothing;
  const double wide = lse;
  double loss = wide - (1 - smoothing) * static_cast<double>(target_logit) +
                static_cast<double>(options.z_loss) * wide * wide;
  if (options.label_smoothing > 0) {  // 0 * -infinity is NaN where logits are masked.
    loss -= smoothing / static_cast<double>(vocab) * logit_sum;
  }
  return static_cast<float>(loss);
}

DT_HOST_DEVICE inline CrossEntropyRowGradient MakeCrossEntropyRowGradient(
    float lse, int64_t vocab, float scale, const CrossEntropyOptions& options) {
  const double wide = scale;
  const double smoothing = options.label_smoothing;
  return {static_cast<float>(
              wide * (1 + 2 * static_cast<double>(options.z_loss) * static_cast<double>(lse))),
          static_cast<float>(-wide * smoothing / static_cast<double>(vocab)),
          static_cast<float>(-wide * (1 - smoothing))};
}

}  // namespace dtrain::kernels
