#include "runtime/model/registered_parameters.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "torch/nn/module.h"

namespace dtrain {
namespace {

// The table of a module's own parameters, of which its public calls make copies with names.
struct OwnParameters : torch::nn::Module {
  static const auto& Of(const torch::nn::Module& module) {
    return module.*(&OwnParameters::parameters_);
  }
};

absl::Status Changed(const std::string& name, const char* how, const char* instead) {
  return absl::FailedPreconditionError(
      absl::StrFormat("parameter %s %s Engine::Create took the module; %s", name, how, instead));
}

constexpr char kBefore[] = "change the module before";

}  // namespace

RegisteredParameters::RegisteredParameters(const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters(/*recurse=*/true)) {
    all_.push_back({item.key(), item.value().unsafeGetTensorImpl(), item.value().requires_grad()});
  }
}

bool RegisteredParameters::Holds(const torch::nn::Module& module, size_t& place) const {
  for (const auto& item : OwnParameters::Of(module)) {
    const at::Tensor& parameter = item.value();
    if (!parameter.defined()) {
      continue;
    }
    if (place == all_.size() || parameter.unsafeGetTensorImpl() != all_[place].tensor ||
        parameter.requires_grad() != all_[place].trains) {
      return false;
    }
    ++place;
  }
  const auto children = module.children();
  return std::all_of(children.begin(), children.end(),
                     [&](const auto& child) { return Holds(*child, place); });
}

absl::Status RegisteredParameters::CheckUnchanged(const torch::nn::Module& module) const {
  size_t place = 0;
  return Holds(module, place) && place == all_.size() ? absl::OkStatus() : Difference(module);
}

absl::Status RegisteredParameters::Difference(const torch::nn::Module& module) const {
  const auto now = module.named_parameters(/*recurse=*/true);
  for (const Registered& was : all_) {
    const at::Tensor* const is = now.find(was.name);
    if (is == nullptr) {
      return Changed(was.name, "is no longer in the module as when", kBefore);
    }
    if (is->unsafeGetTensorImpl() != was.tensor) {
      return Changed(was.name, "is another or a new one since", kBefore);
    }
    if (is->requires_grad() != was.trains) {
      return was.trains ? Changed(was.name, "requires no gradient any more and did when",
                                  "freeze it before, or let it require one again")
                        : Changed(was.name, "requires a gradient and did not when",
                                  "let it require one before, or freeze it again");
    }
  }
  for (const auto& item : now) {
    if (std::none_of(all_.begin(), all_.end(),
                     [&](const Registered& was) { return was.name == item.key(); })) {
      return Changed(item.key(), "is another or a new one since", kBefore);
    }
  }
  return absl::OkStatus();
}

}  // namespace dtrain
