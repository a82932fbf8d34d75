#include "runtime/optimizer/step_options.h"

namespace dtrain {

kernels::AdamWOptions AdamWOptionsOf(const OptimizerConfig& optimizer, const UpdateStep& step,
                                     const ParamSettings& settings) {
  const bool decay_in_gradient = optimizer.kind == OptimizerConfig::Kind::kAdam;
  return {.lr = settings.lr,
          .beta1 = settings.beta1,
          .beta2 = settings.beta2,
          .eps = settings.eps,
          .weight_decay = decay_in_gradient ? 0 : settings.weight_decay,
          .l2 = decay_in_gradient ? settings.weight_decay : 0,
          .grad_scale = step.gradient_scale,
          .grad_limit = step.gradient_limit,
          .step = step.update - settings.missed,
          .bias_correction = optimizer.bias_correction};
}

kernels::SgdOptions SgdOptionsOf(const OptimizerConfig& optimizer, const UpdateStep& step,
                                 const ParamSettings& settings) {
  return {.lr = settings.lr,
          .momentum = optimizer.momentum,
          .dampening = optimizer.dampening,
          .weight_decay = settings.weight_decay,
          .nesterov = optimizer.nesterov,
          .grad_scale = step.gradient_scale,
          .grad_limit = step.gradient_limit,
          .step = step.update - settings.missed};
}

kernels::LionOptions LionOptionsOf(const OptimizerConfig& /*optimizer*/, const UpdateStep& step,
                                   const ParamSettings& settings) {
  return {.lr = settings.lr,
          .beta1 = settings.beta1,
          .beta2 = settings.beta2,
          .weight_decay = settings.weight_decay,
          .grad_scale = step.gradient_scale,
          .grad_limit = step.gradient_limit};
}

kernels::LambOptions LambOptionsOf(const OptimizerConfig& optimizer, const UpdateStep& step,
                                   const ParamSettings& settings) {
  return {.lr = settings.lr,
          .beta1 = settings.beta1,
          .beta2 = settings.beta2,
          .eps = settings.eps,
          .weight_decay = settings.weight_decay,
          .max_coeff = optimizer.max_coeff,
          .min_coeff = optimizer.min_coeff,
          .grad_scale = step.gradient_scale,
          .grad_limit = step.gradient_limit,
          .step = step.update - settings.missed,
          .bias_correction = optimizer.bias_correction};
}

kernels::MuonOptions MuonOptionsOf(const OptimizerConfig& optimizer, const UpdateStep& step,
                                   const ParamSettings& settings) {
  return {.lr = settings.lr,
          .momentum = optimizer.momentum,
          .weight_decay = settings.weight_decay,
          .grad_scale = step.gradient_scale,
          .grad_limit = step.gradient_limit};
}

kernels::AdagradOptions AdagradOptionsOf(const OptimizerConfig& optimizer, const UpdateStep& step,
                                         const ParamSettings& settings) {
  return {.lr = settings.lr,
          .lr_decay = optimizer.lr_decay,
          .eps = settings.eps,
          .weight_decay = settings.weight_decay,
          .grad_scale = step.gradient_scale,
          .grad_limit = step.gradient_limit,
          .step = step.update - settings.missed};
}

}  // namespace dtrain
