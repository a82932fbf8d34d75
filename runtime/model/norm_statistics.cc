#include "runtime/model/norm_statistics.h"

#include <optional>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/ops/batch_norm_native.h"
#include "ATen/ops/instance_norm_native.h"
#include "ATen/ops/ones_like.h"
#include "ATen/ops/zeros_like.h"
#include "c10/core/DispatchKey.h"
#include "c10/core/ScalarType.h"
#include "torch/library.h"

namespace dtrain {
namespace {

using MaybeTensor = std::optional<at::Tensor>;

bool IsThere(const MaybeTensor& tensor) { return tensor.has_value() && tensor->defined(); }

bool IsFp32(const MaybeTensor& tensor) {
  return IsThere(tensor) && tensor->scalar_type() == at::kFloat;
}

bool HasTwoBytes(const MaybeTensor& tensor) {
  return IsThere(tensor) &&
         (tensor->scalar_type() == at::kBFloat16 || tensor->scalar_type() == at::kHalf);
}

MaybeTensor Widened(const MaybeTensor& parameter) {
  return HasTwoBytes(parameter) ? MaybeTensor(parameter->to(at::kFloat)) : parameter;
}

at::Tensor BatchNorm(const at::Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                     const MaybeTensor& mean, const MaybeTensor& variance, bool training,
                     double momentum, double eps, bool cudnn_enabled) {
  const bool mixed = IsFp32(mean);
  return at::native::batch_norm(input, mixed ? Widened(weight) : weight,
                                mixed ? Widened(bias) : bias, mean, variance, training, momentum,
                                eps, cudnn_enabled);
}

at::Tensor InstanceNorm(const at::Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                        const MaybeTensor& mean, const MaybeTensor& variance, bool use_input_stats,
                        double momentum, double eps, bool cudnn_enabled) {
  MaybeTensor factor = weight;
  MaybeTensor offset = bias;
  if (IsFp32(mean)) {
    // The statistics take the type of a weight, so that there has to be one.
    const bool bare = !IsThere(weight) && !IsThere(bias) && HasTwoBytes(input);
    factor = bare ? MaybeTensor(at::ones_like(*mean)) : Widened(weight);
    offset = bare ? MaybeTensor(at::zeros_like(*mean)) : Widened(bias);
  }
  return at::native::instance_norm(input, factor, offset, mean, variance, use_input_stats, momentum,
                                   eps, cudnn_enabled);
}

}  // namespace

void TakeFp32Statistics() {
  // These operations are made of others, so that LibTorch has no kernels of its own for these keys.
  static const auto* const libraries = [] {
    auto* const all = new std::vector<torch::Library>();
    for (const c10::DispatchKey key : {c10::DispatchKey::AutogradCPU, c10::DispatchKey::CPU,
                                       c10::DispatchKey::AutogradCUDA, c10::DispatchKey::CUDA}) {
      all->emplace_back(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
      all->back().impl("batch_norm", &BatchNorm);
      all->back().impl("instance_norm", &InstanceNorm);
    }
    return all;
  }();
  static_cast<void>(libraries);
}

}  // namespace dtrain
