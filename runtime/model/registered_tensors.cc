#include "runtime/model/registered_tensors.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "c10/util/StringUtil.h"
#include "torch/nn/module.h"

namespace dtrain {
namespace {

// The table of a module's own parameters, of which its public calls make copies with names.
struct OwnParameters : torch::nn::Module {
  static const auto& Of(const torch::nn::Module& module) {
    return module.*(&OwnParameters::parameters_);
  }
};

auto NamedTensorsOf(const torch::nn::Module& module, RegisteredTensors::Kind kind) {
  return kind == RegisteredTensors::Kind::kParameters ? module.named_parameters(/*recurse=*/true)
                                                      : module.named_buffers(/*recurse=*/true);
}

std::string Describe(c10::ScalarType type, c10::IntArrayRef shape, c10::Device device) {
  return c10::str(c10::toString(type), " ", shape, " on ", device.str());
}

constexpr char kBefore[] = "change the module before";

absl::Status ParameterChanged(const std::string& name, const char* how, const char* instead) {
  return absl::FailedPreconditionError(
      absl::StrFormat("parameter %s %s Engine::Create took the module; %s", name, how, instead));
}

absl::Status BufferChanged(const std::string& name, const std::string& how) {
  return absl::FailedPreconditionError(absl::StrFormat(
      "buffer %s %s Engine::Create took the module, so that checkpoints would not fit the program; "
      "change the module before, and afterwards write into the buffer (copy_)",
      name, how));
}

}  // namespace

RegisteredTensors::RegisteredTensors(const torch::nn::Module& module, Kind kind) : kind_(kind) {
  for (const auto& item : NamedTensorsOf(module, kind)) {
    if (const at::Tensor& tensor = item.value(); tensor.defined()) {
      all_.push_back({item.key(), tensor.unsafeGetTensorImpl(), tensor.requires_grad(),
                      tensor.scalar_type(), tensor.device(), tensor.sizes().vec()});
    }
  }
}

bool RegisteredTensors::IsSame(const Registered& was, const at::Tensor& is) const {
  if (is.unsafeGetTensorImpl() != was.tensor) {
    return false;
  }
  return kind_ == Kind::kParameters ? is.requires_grad() == was.trains
                                    : is.scalar_type() == was.type && is.device() == was.device &&
                                          is.sizes() == c10::IntArrayRef(was.shape);
}

bool RegisteredTensors::Holds(const torch::nn::Module& module, size_t& place) const {
  const auto is_next = [&](const at::Tensor& tensor) {
    return !tensor.defined() || (place < all_.size() && IsSame(all_[place++], tensor));
  };
  bool all = true;
  if (kind_ == Kind::kParameters) {
    const auto& own = OwnParameters::Of(module);
    all = std::all_of(own.begin(), own.end(),
                      [&](const auto& item) { return is_next(item.value()); });
  } else {
    const auto own = module.buffers(/*recurse=*/false);
    all = std::all_of(own.begin(), own.end(), is_next);
  }
  const auto children = module.children();
  return all && std::all_of(children.begin(), children.end(),
                            [&](const auto& child) { return Holds(*child, place); });
}

absl::Status RegisteredTensors::CheckUnchanged(const torch::nn::Module& module) const {
  size_t place = 0;
  return Holds(module, place) && place == all_.size() ? absl::OkStatus() : Difference(module);
}

absl::Status RegisteredTensors::DifferenceOf(const Registered& was, const at::Tensor& is) const {
  const bool is_another = is.unsafeGetTensorImpl() != was.tensor;
  if (kind_ == Kind::kParameters) {
    if (is_another) {
      return ParameterChanged(was.name, "is another or a new one since", kBefore);
    }
    if (is.requires_grad() == was.trains) {
      return absl::OkStatus();
    }
    return was.trains ? ParameterChanged(was.name, "requires no gradient any more and did when",
                                         "freeze it before, or let it require one again")
                      : ParameterChanged(was.name, "requires a gradient and did not when",
                                         "let it require one before, or freeze it again");
  }
  if (is_another) {
    return BufferChanged(was.name, "is another tensor than when");
  }
  const std::string then = Describe(was.type, was.shape, was.device);
  const std::string today = Describe(is.scalar_type(), is.sizes(), is.device());
  return then == today
             ? absl::OkStatus()
             : BufferChanged(was.name, absl::StrFormat("is %s and was %s when", today, then));
}

absl::Status RegisteredTensors::Difference(const torch::nn::Module& module) const {
  const bool of_parameters = kind_ == Kind::kParameters;
  const auto now = NamedTensorsOf(module, kind_);
  for (const Registered& was : all_) {
    const at::Tensor* const is = now.find(was.name);
    if (is == nullptr || !is->defined()) {
      constexpr char kGone[] = "is no longer in the module as when";
      return of_parameters ? ParameterChanged(was.name, kGone, kBefore)
                           : BufferChanged(was.name, kGone);
    }
    DT_RETURN_IF_ERROR(DifferenceOf(was, *is));
  }
  for (const auto& item : now) {
    if (item.value().defined() &&
        std::none_of(all_.begin(), all_.end(),
                     [&](const Registered& was) { return was.name == item.key(); })) {
      return of_parameters ? ParameterChanged(item.key(), "is another or a new one since", kBefore)
                           : BufferChanged(item.key(), "was not in the module when");
    }
  }
  return absl::OkStatus();
}

}  // namespace dtrain
