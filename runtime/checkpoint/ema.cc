#include "dtrain/ema.h"

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>

#include "ATen/ATen.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "runtime/job/exception_status.h"
#include "runtime/optimizer/engine_state.h"
#include "torch/nn/module.h"

namespace dtrain {
namespace {

using Tensors = torch::OrderedDict<std::string, at::Tensor>;

// The tensor of this name and shape in `all`.
absl::StatusOr<at::Tensor> Find(const Tensors& all, const std::string& name,
                                at::IntArrayRef sizes) {
  const at::Tensor* const found = all.find(name);
  if (found == nullptr || !found->defined()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "Ema::CopyTo: the other module has no %s; give one that is made as the engine's", name));
  }
  if (found->sizes() != sizes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("Ema::CopyTo: %s is [%s] in the other module, and [%s] in the engine's",
                        name, absl::StrJoin(found->sizes(), ", "), absl::StrJoin(sizes, ", ")));
  }
  return *found;
}

}  // namespace

Ema::Ema(Engine& engine, torch::nn::Module& model, double decay)
    : engine_(engine), model_(model), decay_(decay) {
  std::unordered_set<const void*> seen;
  for (const auto& item : model.named_parameters(/*recurse=*/true)) {
    if (item.value().requires_grad() && seen.insert(item.value().unsafeGetTensorImpl()).second) {
      entries_.push_back({.name = item.key(), .weight = item.value(), .average = {}});
    }
  }
}

absl::StatusOr<std::unique_ptr<Ema>> Ema::Create(Engine& engine, torch::nn::Module& model,
                                                 double decay) {
  if (!(decay >= 0 && decay < 1)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "Ema::Create: decay is %g; allowed: from 0 to below 1, such as 0.999", decay));
  }
  std::unique_ptr<Ema> ema(new Ema(engine, model, decay));
  if (ema->entries_.empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("Ema::Create: %s has no parameter that trains", model.name()));
  }
  DT_RETURN_IF_ERROR(ema->WithWeights([&] {
    for (Entry& entry : ema->entries_) {
      entry.average = entry.weight.detach().to(at::kFloat, /*non_blocking=*/false, /*copy=*/true,
                                               at::MemoryFormat::Contiguous);
    }
  }));
  return ema;
}

absl::Status Ema::WithWeights(absl::FunctionRef<void()> read) const {
  if (engine_.state().live != nullptr) {
    return engine_.WithParameters(read);
  }
  const auto safe = [&] {
    const at::NoGradGuard no_grad;
    read();
    return absl::OkStatus();
  };
  return CallSafely([] { return std::string("in dtrain::Ema"); }, safe);
}

absl::Status Ema::Update() {
  return WithWeights([this] {
    for (const Entry& entry : entries_) {
      entry.average.lerp_(entry.weight.detach().to(at::kFloat), 1 - decay_);
    }
  });
}

std::vector<TrackedTensor> Ema::tensors() const {
  std::vector<TrackedTensor> all;
  for (const Entry& entry : entries_) {
    all.push_back({.name = entry.name, .tensor = entry.average});
  }
  return all;
}

absl::Status Ema::CopyTo(torch::nn::Module& other) const {
  if (&other == &model_) {
    return absl::InvalidArgumentError(
        "Ema::CopyTo: the other module is the engine's own, whose weights would be lost; give "
        "another one of the same form");
  }
  const Tensors parameters = other.named_parameters(/*recurse=*/true);
  const Tensors buffers = other.named_buffers(/*recurse=*/true);
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // To, from.
  for (const Entry& entry : entries_) {
    DT_ASSIGN_OR_RETURN(at::Tensor to, Find(parameters, entry.name, entry.average.sizes()));
    copies.emplace_back(std::move(to), entry.average);
  }
  for (const auto& item : model_.named_parameters(/*recurse=*/true)) {
    if (!item.value().requires_grad()) {
      DT_ASSIGN_OR_RETURN(at::Tensor to, Find(parameters, item.key(), item.value().sizes()));
      copies.emplace_back(std::move(to), item.value());
    }
  }
  for (const auto& item : model_.named_buffers(/*recurse=*/true)) {
    if (item.value().defined()) {
      DT_ASSIGN_OR_RETURN(at::Tensor to, Find(buffers, item.key(), item.value().sizes()));
      copies.emplace_back(std::move(to), item.value());
    }
  }
  return WithWeights([&] {
    for (const auto& [to, from] : copies) {
      to.detach().copy_(from);
    }
  });
}

}  // namespace dtrain
