#include "runtime/ops/gradient_home.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/graph_task.h"
#include "torch/csrc/autograd/variable.h"

namespace dtrain::ops {
namespace {

struct Place {
  GradientHomes* homes;
  size_t index;
};

struct Registry {
  std::mutex mutex;
  std::unordered_map<const c10::TensorImpl*, Place> places;
};

Registry& TheRegistry() {
  static auto* const registry = new Registry();  // Outlives every engine.
  return *registry;
}

// Whether the gradient must go through autograd: it is not accumulated, or hooks are to see it.
bool SomebodyWantsIt(const at::Tensor& parameter) {
  const auto* const chosen = torch::autograd::get_current_graph_task_exec_info();
  if (chosen == nullptr || !chosen->empty() || !torch::autograd::impl::hooks(parameter).empty()) {
    return true;
  }
  const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(parameter);
  return accumulator == nullptr || !accumulator->pre_hooks().empty() ||
         std::any_of(accumulator->post_hooks().begin(), accumulator->post_hooks().end(),
                     [](const auto& hook) {
                       return dynamic_cast<const GradientHomeHook*>(hook.get()) == nullptr;
                     });
}

}  // namespace

GradientHomesOf::GradientHomesOf(const std::vector<at::Tensor>& parameters, GradientHomes& homes)
    : parameters_(parameters), homes_(&homes) {
  Registry& registry = TheRegistry();
  const std::lock_guard lock(registry.mutex);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    registry.places[parameters_[i].unsafeGetTensorImpl()] = {&homes, i};
  }
}

GradientHomesOf::~GradientHomesOf() {
  Registry& registry = TheRegistry();
  const std::lock_guard lock(registry.mutex);
  for (const at::Tensor& parameter : parameters_) {
    const auto found = registry.places.find(parameter.unsafeGetTensorImpl());
    if (found != registry.places.end() && found->second.homes == homes_) {
      registry.places.erase(found);
    }
  }
}

GradientHome TakeGradientHome(const at::Tensor& parameter, bool can_add) {
  if (SomebodyWantsIt(parameter)) {
    return {};
  }
  Registry& registry = TheRegistry();
  const std::lock_guard lock(registry.mutex);
  const auto found = registry.places.find(parameter.unsafeGetTensorImpl());
  if (found == registry.places.end()) {
    return {};
  }
  return found->second.homes->TakeHome(found->second.index, can_add);
}

}  // namespace dtrain::ops
