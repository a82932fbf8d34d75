#include "runtime/gradients/compression/device_reduction.h"

#include <utility>

#include "ATen/Functions.h"
#include "base/status.h"
#include "kernels/optimizer/grad_norm.h"
#include "runtime/memory/tensor_over.h"

namespace dtrain {

absl::StatusOr<std::unique_ptr<FiniteFlag>> FiniteFlag::Create(const Device& device,
                                                               int64_t elements) {
  const auto sums = static_cast<size_t>(1 + kernels::NormBlocks(0, elements));
  DT_ASSIGN_OR_RETURN(auto memory, DeviceMemory::Create(device, sums * sizeof(double),
                                                        "sums of squares of a bucket"));
  return std::unique_ptr<FiniteFlag>(new FiniteFlag(device, elements, std::move(memory)));
}

absl::Status FiniteFlag::Queue(const float* data, CudaStream stream) const {
  auto* const sum = static_cast<double*>(memory_->data());
  DT_RETURN_IF_ERROR(device_.kernels().block_square_sums(data, 0, elements_, sum + 1, stream));
  return device_.kernels().tree_sum(sum + 1, kernels::NormBlocks(0, elements_), sum, stream);
}

at::Tensor FiniteFlag::Broken() const {
  return at::isfinite(TensorOver(memory_, 1, at::kDouble, device_.tensors())).logical_not_();
}

}  // namespace dtrain
