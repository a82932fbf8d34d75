#include "runtime/ops/fp8_weight_codes.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "c10/core/InferenceMode.h"
#include "runtime/ops/fused.h"

namespace dtrain::ops {
namespace {

struct Place {
  KeptWeightCodes* owner = nullptr;
  size_t index = 0;
};

struct Registry {
  std::mutex mutex;
  std::unordered_map<const c10::TensorImpl*, Place> places;
  uint64_t openings = 0;
  int without = 0;  // Objects of WithoutKeptCodes.
  std::atomic<uint64_t> writes = 0;

  // Of the first, where all weights are one owner's; else without an owner. REQUIRES: mutex held.
  Place Find(at::TensorList weights) const {
    Place first;
    for (const at::Tensor& weight : weights) {
      const auto found = places.find(weight.unsafeGetTensorImpl());
      if (found == places.end() || (first.owner != nullptr && found->second.owner != first.owner)) {
        return {};
      }
      first = first.owner == nullptr ? found->second : first;
    }
    return first;
  }
};

Registry& TheRegistry() {
  static auto* const registry = new Registry();  // Outlives every engine.
  return *registry;
}

}  // namespace

WithoutKeptCodes::WithoutKeptCodes() {
  Registry& registry = TheRegistry();
  const std::lock_guard lock(registry.mutex);
  ++registry.without;
}

WithoutKeptCodes::~WithoutKeptCodes() {
  Registry& registry = TheRegistry();
  const std::lock_guard lock(registry.mutex);
  --registry.without;
}

KeptWeightCodes::KeptWeightCodes(std::vector<at::Tensor> weights) : weights_(std::move(weights)) {
  Registry& registry = TheRegistry();
  const std::lock_guard lock(registry.mutex);
  for (size_t i = 0; i < weights_.size(); ++i) {
    registry.places[weights_[i].unsafeGetTensorImpl()] = {this, i};
  }
}

KeptWeightCodes::~KeptWeightCodes() {
  Registry& registry = TheRegistry();
  const std::lock_guard lock(registry.mutex);
  for (const at::Tensor& weight : weights_) {
    const auto found = registry.places.find(weight.unsafeGetTensorImpl());
    if (found != registry.places.end() && found->second.owner == this) {
      registry.places.erase(found);
    }
  }
}

void KeptWeightCodes::Open() {
  Registry& registry = TheRegistry();
  const std::lock_guard lock(registry.mutex);
  opening_ = ++registry.openings;
  codes_.assign(weights_.size(), {});
}

void KeptWeightCodes::Close() {
  Registry& registry = TheRegistry();
  const std::lock_guard lock(registry.mutex);
  opening_ = 0;
  codes_.clear();
}

void KeptWeightCodes::NoteWrites() { ++TheRegistry().writes; }

KeptWeightCodes::Source KeptWeightCodes::SourceOf(at::TensorList weights,
                                                  Fp8Options::Scaling scaling) {
  Source source{.weights = {},
                .writes = TheRegistry().writes,
                .scaling = scaling,
                .stream = OnGpu(weights[0]) ? GpuLaunch(weights[0]).stream() : nullptr};
  for (const at::Tensor& weight : weights) {
    source.weights.push_back({weight.const_data_ptr(), static_cast<uint32_t>(weight._version())});
  }
  return source;
}

Fp8Matrix KeptWeightCodes::Get(at::TensorList weights, Fp8Options::Scaling scaling, Form form,
                               absl::FunctionRef<Fp8Matrix()> make) {
  const auto made = [&] {
    const std::array<const c10::IValue, 0> inputs = {};
    RECORD_FUNCTION("dtrain::fp8_weight_codes", inputs);  // A test counts it.
    return make();
  };
  // Without a counter of writes; and autograd could not save what is made now.
  if (c10::InferenceMode::is_enabled() ||
      std::any_of(weights.begin(), weights.end(),
                  [](const at::Tensor& weight) { return weight.is_inference(); })) {
    return made();
  }
  const Source source = SourceOf(weights, scaling);
  Registry& registry = TheRegistry();
  uint64_t opening = 0;
  {
    const std::lock_guard lock(registry.mutex);
    const Place place = registry.Find(weights);
    if (place.owner != nullptr && registry.without == 0) {
      opening = place.owner->opening_;
    }
    if (opening != 0) {
      Codes& codes = place.owner->codes_[place.index];
      if (codes.source == source && codes.of(form).codes.defined()) {
        return codes.of(form);
      }
    }
  }
  Fp8Matrix result = made();
  if (opening != 0) {
    const std::lock_guard lock(registry.mutex);
    const Place place = registry.Find(weights);
    // Who opened it may have closed it meanwhile, or be gone.
    if (place.owner != nullptr && place.owner->opening_ == opening) {
      Codes& codes = place.owner->codes_[place.index];
      if (!(codes.source == source)) {
        codes = {.source = source, .as_is = {}, .transposed = {}};
      }
      codes.of(form) = result;
    }
  }
  return result;
}

Fp8Matrix WeightsToFp8(at::TensorList weights, const at::Tensor& merged,
                       Fp8Options::Scaling scaling) {
  return KeptWeightCodes::Get(weights, scaling, KeptWeightCodes::Form::kAsIs,
                              [&] { return ToFp8(merged, kernels::Fp8Format::kE4m3, scaling); });
}

Fp8Matrix TransposedWeightsToFp8(at::TensorList weights, const at::Tensor& merged,
                                 Fp8Options::Scaling scaling, const Fp8Matrix& known) {
  return KeptWeightCodes::Get(weights, scaling, KeptWeightCodes::Form::kTransposed, [&] {
    return TransposedToFp8(merged, kernels::Fp8Format::kE4m3, known);
  });
}

}  // namespace dtrain::ops
