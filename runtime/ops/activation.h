// Activations by the kernels, without autograd. Private to runtime/ops.
#pragma once

#include "ATen/core/Tensor.h"
#include "kernels/layers/activation.h"

namespace dtrain::ops {

// y = act(x) and dx = dy act'(x), of what is Fusable (fused.h), of one shape and type. `y` may be
// `x`, and `dx` either of x and dy.
void ActivationForward(const at::Tensor& x, kernels::Activation activation, at::Tensor y);
void ActivationBackward(const at::Tensor& x, const at::Tensor& dy, kernels::Activation activation,
                        at::Tensor dx);

}  // namespace dtrain::ops
