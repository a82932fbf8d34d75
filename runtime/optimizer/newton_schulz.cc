#include "runtime/optimizer/newton_schulz.h"

#include <cmath>

#include "ATen/Functions.h"

namespace dtrain {
namespace {

constexpr int kSteps = 5;
constexpr double kA = 3.4445;
constexpr double kB = -4.7750;
constexpr double kC = 2.0315;

}  // namespace

at::Tensor NewtonSchulz(const at::Tensor& update) {
  const at::Tensor matrix = update.dim() == 4 ? update.view({update.size(0), -1}) : update;
  const bool tall = matrix.size(-2) > matrix.size(-1);
  at::Tensor x = tall ? matrix.mT() : matrix;
  // The norm of all elements bounds the largest singular value.
  x = x / (x.square().sum({-2, -1}, /*keepdim=*/true).sqrt() + 1e-7);
  if (x.is_cuda()) {
    x = x.to(
        at::kBFloat16);  // Jordan and DeepSpeed do so too: the iteration needs no more precision.
  }
  for (int i = 0; i < kSteps; ++i) {
    const at::Tensor a = x.matmul(x.mT());
    const at::Tensor b = kB * a + kC * a.matmul(a);
    x = kA * x + b.matmul(x);
  }
  if (tall) {
    x = x.mT();
  }
  const auto rows = static_cast<double>(update.size(-2));
  const auto columns = static_cast<double>(update.size(-1));
  const double scale = rows > columns ? std::sqrt(rows / columns) : 1.0;
  return (x.to(at::kFloat) * scale).reshape(update.sizes()).contiguous();
}

}  // namespace dtrain
