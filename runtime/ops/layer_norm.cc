#include "ATen/Functions.h"
#include "dtrain/ops.h"

namespace dtrain::ops {

at::Tensor LayerNorm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                     double eps) {
  return at::layer_norm(x, weight.sizes(), weight, bias, eps);
}

NormOfSum AddLayerNorm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                       const at::Tensor& bias, double eps) {
  const at::Tensor sum = x + residual;
  return {LayerNorm(sum, weight, bias, eps), sum};
}

}  // namespace dtrain::ops
