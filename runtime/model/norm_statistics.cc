#include "runtime/model/norm_statistics.h"

#include <optional>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/ops/batch_norm_native.h"
#include "c10/core/DispatchKey.h"
#include "c10/core/ScalarType.h"
#include "torch/library.h"

namespace dtrain {
namespace {

using MaybeTensor = std::optional<at::Tensor>;

bool IsOfType(const MaybeTensor& tensor, at::ScalarType type) {
  return tensor.has_value() && tensor->defined() && tensor->scalar_type() == type;
}

at::Tensor BatchNorm(const at::Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                     const MaybeTensor& mean, const MaybeTensor& variance, bool training,
                     double momentum, double eps, bool cudnn_enabled) {
  const auto widened = [&](const MaybeTensor& parameter) -> MaybeTensor {
    const bool mixed = IsOfType(mean, at::kFloat) &&
                       (IsOfType(parameter, at::kBFloat16) || IsOfType(parameter, at::kHalf));
    return mixed ? MaybeTensor(parameter->to(at::kFloat)) : parameter;
  };
  return at::native::batch_norm(input, widened(weight), widened(bias), mean, variance, training,
                                momentum, eps, cudnn_enabled);
}

}  // namespace

void TakeFp32Statistics() {
  // The operation is made of others, so that LibTorch has no kernel of its own for these keys.
  static const auto* const libraries = [] {
    auto* const all = new std::vector<torch::Library>();
    for (const c10::DispatchKey key : {c10::DispatchKey::AutogradCPU, c10::DispatchKey::CPU,
                                       c10::DispatchKey::AutogradCUDA, c10::DispatchKey::CUDA}) {
      all->emplace_back(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
      all->back().impl("batch_norm", &BatchNorm);
    }
    return all;
  }();
  static_cast<void>(libraries);
}

}  // namespace dtrain
