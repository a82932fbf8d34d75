// Activations by the kernels, without autograd. Private to runtime/ops.
#pragma once

#include "ATen/core/Tensor.h"
#include "kernels/activation.h"

namespace dtrain::ops {

// Of x and dy that are Fusable (fused.h), of one shape and type.
at::Tensor ActivationForward(const at::Tensor& x, kernels::Activation activation);
at::Tensor ActivationBackward(const at::Tensor& x, const at::Tensor& dy,
                              kernels::Activation activation);

}  // namespace dtrain::ops
