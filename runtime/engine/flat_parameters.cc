#include "runtime/engine/flat_parameters.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "torch/nn/module.h"

namespace dtrain {
namespace {

absl::Status CheckSupported(const std::string& name, const at::Tensor& parameter) {
  if (parameter.scalar_type() == at::kFloat && parameter.layout() == at::kStrided &&
      parameter.device().is_cpu()) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(
      absl::StrFormat("trainable parameter %s is %s on %s; allowed: dense fp32 on the CPU (set "
                      "requires_grad to false "
                      "to freeze it, or convert it)",
                      name, c10::toString(parameter.scalar_type()), parameter.device().str()));
}

// fp32 tensor [elements] over memory that `owner` keeps alive.
at::Tensor TensorOver(const std::shared_ptr<comm::SymmetricBuffer>& owner, int64_t elements) {
  return at::from_blob(
      owner->data(), {elements}, [owner](void*) {}, at::TensorOptions(at::kFloat));
}

}  // namespace

absl::StatusOr<std::unique_ptr<FlatParameters>> FlatParameters::Create(torch::nn::Module& module,
                                                                       const FlatOptions& options) {
  std::vector<NamedTensor> trainable;
  std::vector<plan::ParamSpec> specs;
  std::vector<NamedTensor> frozen;
  std::unordered_map<const void*, std::string>
      seen;  // TensorImpl -> first name: shared parameters.
  for (const auto& item : module.named_parameters(/*recurse=*/true)) {
    const at::Tensor& parameter = item.value();
    if (!parameter.defined() || !seen.emplace(parameter.unsafeGetTensorImpl(), item.key()).second) {
      continue;
    }
    if (!parameter.requires_grad()) {
      frozen.push_back({item.key(), parameter});
      continue;
    }
    DT_RETURN_IF_ERROR(CheckSupported(item.key(), parameter));
    trainable.push_back({item.key(), parameter});
    specs.push_back({item.key(), parameter.sizes().vec(), DType::kFloat32});
  }
  if (trainable.empty()) {
    return absl::InvalidArgumentError("the module has no trainable parameter");
  }
  DT_ASSIGN_OR_RETURN(plan::ParamLayout layout, plan::ParamLayout::Create(specs));
  auto flat = std::unique_ptr<FlatParameters>(new FlatParameters(std::move(layout)));
  flat->frozen_ = std::move(frozen);
  for (const auto& item : module.named_buffers(/*recurse=*/true)) {
    if (item.value().defined()) {
      flat->module_buffers_.push_back({item.key(), item.value()});
    }
  }
  DT_RETURN_IF_ERROR(flat->Allocate(options));
  flat->MoveIn(trainable);
  return flat;
}

absl::Status FlatParameters::Allocate(const FlatOptions& options) {
  const int64_t pad = options.pad_to_multiple;
  const int64_t elements = std::max(pad, (layout_.total_elements() + pad - 1) / pad * pad);
  const size_t bytes = static_cast<size_t>(elements) * sizeof(float);
  if (options.with_gradients) {
    DT_ASSIGN_OR_RETURN(gradient_memory_, comm::SymmetricBuffer::Create(bytes, "dtrain-gradients"));
    gradients_ = TensorOver(gradient_memory_, elements);
  }
  if (options.values_symmetric) {
    DT_ASSIGN_OR_RETURN(value_memory_, comm::SymmetricBuffer::Create(bytes, "dtrain-values"));
    values_ = TensorOver(value_memory_, elements);
  } else {
    values_ = at::zeros({elements}, at::TensorOptions(at::kFloat));
  }
  return absl::OkStatus();
}

void FlatParameters::MoveIn(const std::vector<NamedTensor>& trainable) {
  const at::NoGradGuard no_grad;
  for (const plan::LayoutEntry& entry : layout_.entries()) {
    at::Tensor parameter = trainable[static_cast<size_t>(entry.registration_index)].tensor;
    const at::Tensor view = values_.narrow(0, entry.offset, entry.elements).view(entry.shape);
    view.copy_(parameter);
    parameter.set_data(view);
    parameters_.push_back(parameter);
    if (gradients_.defined()) {
      gradient_views_.push_back(
          gradients_.narrow(0, entry.offset, entry.elements).view(entry.shape));
    }
  }
}

void FlatParameters::ClearGradients() {
  for (const at::Tensor& parameter : parameters_) {
    parameter.mutable_grad().reset();
  }
}

}  // namespace dtrain
