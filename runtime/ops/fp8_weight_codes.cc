#include "runtime/ops/fp8_weight_codes.h"

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

KeptWeightCodes::Source KeptWeightCodes::SourceOf(const at::Tensor& weight,
                                                  Fp8Options::Scaling scaling) {
  return {.data = weight.const_data_ptr(),
          .version = static_cast<uint32_t>(weight._version()),
          .writes = TheRegistry().writes,
          .scaling = scaling,
          .stream = OnGpu(weight) ? GpuLaunch(weight).stream() : nullptr};
}

Fp8Matrix KeptWeightCodes::Get(const at::Tensor& weight, Fp8Options::Scaling scaling, Form form,
                               absl::FunctionRef<Fp8Matrix()> make) {
  const auto made = [&] {
    const std::array<const c10::IValue, 0> inputs = {};
    RECORD_FUNCTION("dtrain::fp8_weight_codes", inputs);  // A test counts it.
    return make();
  };
  if (weight.is_inference() || c10::InferenceMode::is_enabled()) {
    return made();  // Without a counter of writes; and autograd could not save what is made now.
  }
  const Source source = SourceOf(weight, scaling);
  Registry& registry = TheRegistry();
  Place place;
  uint64_t opening = 0;
  {
    const std::lock_guard lock(registry.mutex);
    const auto found = registry.places.find(weight.unsafeGetTensorImpl());
    if (registry.without == 0 && found != registry.places.end()) {
      place = found->second;
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
    const auto found = registry.places.find(weight.unsafeGetTensorImpl());
    // Who opened it may have closed it meanwhile, or be gone.
    if (found != registry.places.end() && found->second.owner->opening_ == opening) {
      Codes& codes = found->second.owner->codes_[found->second.index];
      if (!(codes.source == source)) {
        codes = {.source = source, .as_is = {}, .transposed = {}};
      }
      codes.of(form) = result;
    }
  }
  return result;
}

Fp8Matrix WeightToFp8(const at::Tensor& weight, Fp8Options::Scaling scaling) {
  return KeptWeightCodes::Get(weight, scaling, KeptWeightCodes::Form::kAsIs,
                              [&] { return ToFp8(weight, kernels::Fp8Format::kE4m3, scaling); });
}

Fp8Matrix TransposedWeightToFp8(const at::Tensor& weight, Fp8Options::Scaling scaling,
                                const Fp8Matrix& known) {
  return KeptWeightCodes::Get(weight, scaling, KeptWeightCodes::Form::kTransposed, [&] {
    return TransposedToFp8(weight, kernels::Fp8Format::kE4m3, known);
  });
}

}  // namespace dtrain::ops
