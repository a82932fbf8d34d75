#include "runtime/model/flat_parameters.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status.h"
#include "comm/nccl/device_group.h"
#include "runtime/device/device_range.h"
#include "runtime/memory/tensor_over.h"
#include "runtime/model/dtypes.h"
#include "runtime/model/norm_statistics.h"
#include "runtime/model/tensor_overlap.h"
#include "torch/nn/module.h"

namespace dtrain {
namespace {

absl::Status CheckSupported(const std::string& name, const at::Tensor& parameter,
                            at::ScalarType values, at::Device device) {
  const bool type = parameter.scalar_type() == at::kFloat || parameter.scalar_type() == values;
  if (type && parameter.layout() == at::kStrided &&
      (parameter.device().is_cpu() || parameter.device() == device)) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(
      absl::StrFormat("trainable parameter %s is %s on %s; allowed: dense fp32 on the CPU%s%s (set "
                      "requires_grad to "
                      "false to freeze it, or convert it)",
                      name, c10::toString(parameter.scalar_type()), parameter.device().str(),
                      device.is_cpu() ? "" : absl::StrCat(" or ", device.str()),
                      values == at::kFloat ? ", or bf16 or fp16 with bf16.enabled or fp16.enabled"
                                           : absl::StrCat(", or ", c10::toString(values))));
}

// The type that MoveInPlace gives to a tensor beside parameters of the type `values`.
at::ScalarType TypeBeside(const at::Tensor& tensor, DType values) {
  const bool cast = tensor.is_floating_point() && values != DType::kFloat32;
  return cast ? FloatTypeOf(values) : tensor.scalar_type();
}

bool StaysInPlace(const at::Tensor& tensor, DType values, at::Device device) {
  return tensor.device() == device && tensor.scalar_type() == TypeBeside(tensor, values);
}

// The module's handle of `tensor` sees the change.
void MoveInPlace(at::Tensor tensor, DType values, at::Device device) {
  if (!StaysInPlace(tensor, values, device)) {
    tensor.set_data(tensor.to(device, TypeBeside(tensor, values)));
  }
}

absl::StatusOr<std::unique_ptr<comm::Registration>> RegisterMemory(
    comm::Group& group, const std::shared_ptr<comm::SymmetricBuffer>& host,
    const std::shared_ptr<DeviceMemory>& device) {
  if (device == nullptr) {
    return group.Register(host);
  }
  auto* const of_devices = dynamic_cast<comm::DeviceGroup*>(&group);
  DT_CHECK(of_devices != nullptr) << " device memory registered with a host group";
  return of_devices->RegisterDevice(device->data(), device->bytes());
}

}  // namespace

absl::StatusOr<std::unique_ptr<FlatParameters>> FlatParameters::Describe(torch::nn::Module& module,
                                                                         DType values,
                                                                         const Device& device) {
  std::vector<at::Tensor> trainable;
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
    DT_RETURN_IF_ERROR(
        CheckSupported(item.key(), parameter, FloatTypeOf(values), device.tensors()));
    trainable.push_back(parameter);
    specs.push_back({item.key(), parameter.sizes().vec(), values});
  }
  if (trainable.empty()) {
    return absl::InvalidArgumentError("the module has no trainable parameter");
  }
  DT_ASSIGN_OR_RETURN(plan::ParamLayout layout, plan::ParamLayout::Create(specs));
  auto flat =
      std::unique_ptr<FlatParameters>(new FlatParameters(std::move(layout), values, device));
  for (const plan::LayoutEntry& entry : flat->layout_.entries()) {
    flat->parameters_.push_back(trainable[static_cast<size_t>(entry.registration_index)]);
  }
  flat->frozen_ = std::move(frozen);
  for (const auto& item : module.named_buffers(/*recurse=*/true)) {
    if (item.value().defined()) {
      flat->module_buffers_.push_back({item.key(), item.value()});
    }
  }
  DT_RETURN_IF_ERROR(flat->CheckApart());
  return flat;
}

std::string NameOf(const HeldTensor& tensor) {
  return absl::StrCat(tensor.kind == HeldTensor::Kind::kBuffer ? "buffer " : "parameter ",
                      tensor.name);
}

std::vector<HeldTensor> FlatParameters::Tensors() const {
  using Kind = HeldTensor::Kind;
  std::vector<HeldTensor> all;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    all.push_back({Kind::kTrains, layout_.entries()[i].name, parameters_[i]});
  }
  for (const auto* const list : {&frozen_, &module_buffers_}) {
    for (const NamedTensor& item : *list) {
      all.push_back({list == &frozen_ ? Kind::kFrozen : Kind::kBuffer, item.name, item.tensor,
                     StaysInPlace(item.tensor, dtype_, device_.tensors())});
    }
  }
  return all;
}

// Frozen parameters may share memory among themselves: none of them changes. So may buffers that
// stay where they are.
absl::Status FlatParameters::CheckApart() const {
  using Kind = HeldTensor::Kind;
  const std::vector<HeldTensor> all = Tensors();
  std::vector<at::Tensor> tensors;
  for (const HeldTensor& item : all) {
    tensors.push_back(item.tensor);
  }
  const auto matters = [&](size_t a, size_t b) {  // `a` before `b`, in the order of kinds.
    if (all[a].kind == Kind::kTrains) {
      return true;
    }
    if (all[a].kind == Kind::kFrozen) {
      return all[b].kind == Kind::kBuffer;
    }
    return !tensors[a].is_same(tensors[b]) && !(all[a].stays && all[b].stays);
  };
  const auto found = FindOverlap(tensors, matters);
  if (!found.has_value()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s and %s share memory, and would come apart where the engine gives each a place of its "
      "own; use one registered tensor in both places, or give each memory of its own (clone)",
      NameOf(all[found->first]), NameOf(all[found->second])));
}

bool FlatParameters::CanBeSharedOut(const at::Tensor& frozen) const {
  const at::ScalarType type = frozen.scalar_type();
  const bool is_float = type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
  const bool becomes_values = dtype_ == DType::kFloat32 ? type == at::kFloat : is_float;
  return becomes_values && frozen.numel() > 0 && frozen.layout() == at::kStrided &&
         (frozen.device().is_cpu() || frozen.device() == device_.tensors());
}

absl::StatusOr<std::unique_ptr<FlatParameters>> FlatParameters::TakeFrozen() {
  std::vector<NamedTensor> left;
  std::vector<NamedTensor> taken;
  std::vector<plan::ParamSpec> specs;
  for (const NamedTensor& item : frozen_) {
    const bool take = CanBeSharedOut(item.tensor);
    (take ? taken : left).push_back(item);
    if (take) {
      specs.push_back({item.name, item.tensor.sizes().vec(), dtype_});
    }
  }
  if (taken.empty()) {
    return std::unique_ptr<FlatParameters>();
  }
  DT_ASSIGN_OR_RETURN(plan::ParamLayout layout, plan::ParamLayout::Create(specs));
  auto flat =
      std::unique_ptr<FlatParameters>(new FlatParameters(std::move(layout), dtype_, device_));
  for (const plan::LayoutEntry& entry : flat->layout_.entries()) {
    flat->parameters_.push_back(taken[static_cast<size_t>(entry.registration_index)].tensor);
  }
  frozen_ = std::move(left);
  return flat;
}

absl::StatusOr<plan::ParamLayout> FlatParameters::FrozenLayout() const {
  std::vector<plan::ParamSpec> specs;
  for (const NamedTensor& item : frozen_) {
    specs.push_back({item.name, item.tensor.sizes().vec(), dtype_});
  }
  return plan::ParamLayout::Create(specs);
}

absl::Status FlatParameters::Allocate(const FlatOptions& options) {
  const int64_t pad = options.pad_to_multiple;
  const int64_t elements = std::max(pad, (layout_.total_elements() + pad - 1) / pad * pad);
  const auto count = static_cast<size_t>(elements);
  if (options.with_gradients && !device_.is_host()) {
    DT_ASSIGN_OR_RETURN(device_gradients_,
                        DeviceMemory::Create(device_, count * sizeof(float), "gradients"));
    gradients_ = TensorOver(device_gradients_, elements, at::kFloat, device_.tensors());
  } else if (options.with_gradients) {
    DT_ASSIGN_OR_RETURN(gradient_memory_,
                        comm::SymmetricBuffer::Create(count * sizeof(float), "dtrain-gradients"));
    gradients_ = TensorOver(gradient_memory_, elements, at::kFloat);
  }
  const at::ScalarType type = FloatTypeOf(dtype_);
  const size_t bytes = count * DTypeBytes(dtype_);
  switch (options.values) {
    case ValueMemory::kPrivate:
      values_ = at::zeros({elements}, at::TensorOptions(type).device(device_.tensors()));
      break;
    case ValueMemory::kSymmetric: {
      if (!device_.is_host()) {
        DT_ASSIGN_OR_RETURN(device_values_, DeviceMemory::Create(device_, bytes, "weights"));
        values_ = TensorOver(device_values_, elements, type, device_.tensors());
        break;
      }
      DT_ASSIGN_OR_RETURN(value_memory_, comm::SymmetricBuffer::Create(bytes, "dtrain-values"));
      values_ = TensorOver(value_memory_, elements, type);
      break;
    }
    case ValueMemory::kReserved: {
      if (!device_.is_host()) {
        DT_ASSIGN_OR_RETURN(auto range, DeviceRange::Create(device_, bytes));
        values_ = TensorOver(range, elements, type, device_.tensors());
        break;
      }
      DT_ASSIGN_OR_RETURN(ReservedMemory range, ReservedMemory::Create(bytes));
      value_range_ = std::make_shared<ReservedMemory>(std::move(range));
      values_ = TensorOver(value_range_, elements, type);
      break;
    }
  }
  return absl::OkStatus();
}

absl::Status FlatParameters::MoveIn(const FlatOptions& options, Keep keep) {
  DT_RETURN_IF_ERROR(Allocate(options));
  if (dtype_ != DType::kFloat32) {
    TakeFp32Statistics();
  }
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const plan::LayoutEntry& entry = layout_.entries()[i];
    at::Tensor parameter = parameters_[i];
    keep(entry, parameter.contiguous().view({-1}));
    const at::Tensor view = values_.narrow(0, entry.offset, entry.elements).view(entry.shape);
    if (options.values != ValueMemory::kReserved) {
      view.copy_(parameter);
    }
    parameter.set_data(view);
    homes_.push_back(view);
    if (gradients_.defined()) {
      gradient_views_.push_back(
          gradients_.narrow(0, entry.offset, entry.elements).view(entry.shape));
    }
  }
  const auto move = [this](const NamedTensor& item, bool cast) {
    MoveInPlace(item.tensor, cast ? dtype_ : DType::kFloat32, device_.tensors());
  };
  for (const NamedTensor& item : frozen_) {
    move(item, true);
  }
  for (const NamedTensor& item : module_buffers_) {
    move(item, options.cast_buffers);
  }
  return absl::OkStatus();
}

void FlatParameters::MoveElsewhere(size_t index, const at::Tensor& view) {
  at::Tensor parameter = parameters_[index];
  parameter.set_data(view);
  homes_[index] = view;
}

bool FlatParameters::is_in_values(size_t index) const { return homes_[index].is_alias_of(values_); }

absl::StatusOr<std::unique_ptr<comm::Registration>> FlatParameters::RegisterValues(
    comm::Group& group) const {
  return RegisterMemory(group, value_memory_, device_values_);
}

absl::StatusOr<std::unique_ptr<comm::Registration>> FlatParameters::RegisterGradients(
    comm::Group& group) const {
  return RegisterMemory(group, gradient_memory_, device_gradients_);
}

absl::Status FlatParameters::CheckInPlace() const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].const_data_ptr() != homes_[i].const_data_ptr()) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "parameter %s is in other memory (set_data, to) than when Engine::Create took the "
          "module; change the module before",
          layout_.entries()[i].name));
    }
  }
  return absl::OkStatus();
}

void FlatParameters::RememberVersions() {
  versions_.clear();
  for (const at::Tensor& parameter : parameters_) {
    versions_.push_back(parameter._version());
  }
}

absl::Status FlatParameters::CheckUnwritten() const {
  for (size_t i = 0; i < versions_.size(); ++i) {
    if (parameters_[i]._version() != versions_[i]) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "parameter %s was written to by the program, which is lost at zero_optimization.stage 3 "
          "and in mixed precision, where its values are copies; write before Engine::Create, or %s",
          layout_.entries()[i].name,
          parameters_[i].requires_grad()
              ? "give the engine an optimizer (dtrain/optimizer.h)"
              : "register it as a buffer: buffers are whole on every rank"));
    }
  }
  return absl::OkStatus();
}

void FlatParameters::ClearGradients() {
  for (const at::Tensor& parameter : parameters_) {
    parameter.mutable_grad().reset();
  }
}

}  // namespace dtrain
