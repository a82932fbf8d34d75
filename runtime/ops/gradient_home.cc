#include "runtime/ops/gradient_home.h"

#include <mutex>
#include <unordered_map>

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

at::Tensor TakeGradientHome(const at::Tensor& parameter) {
  Registry& registry = TheRegistry();
  const std::lock_guard lock(registry.mutex);
  const auto found = registry.places.find(parameter.unsafeGetTensorImpl());
  if (found == registry.places.end()) {
    return {};
  }
  return found->second.homes->TakeHome(found->second.index);
}

}  // namespace dtrain::ops
