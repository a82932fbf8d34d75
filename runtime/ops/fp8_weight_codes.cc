#include "runtime/ops/fp8_weight_codes.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "c10/core/InferenceMode.h"
#include "runtime/ops/fused.h"
#include "runtime/ops/linear_products.h"

namespace dtrain::ops {
namespace {

struct CodesPlace {
  KeptWeightCodes* owner = nullptr;
  size_t index = 0;
};

struct CodesRegistry {
  std::mutex mutex;
  std::unordered_map<const c10::TensorImpl*, CodesPlace> places;
  uint64_t openings = 0;
  int without = 0;  // Objects of WithoutKeptCodes.
  std::atomic<uint64_t> writes = 0;

  // The first weight's place, where all weights are one owner's; else one without an owner.
  // REQUIRES: mutex held.
  CodesPlace Find(at::TensorList weights) const {
    CodesPlace first;
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

CodesRegistry& TheCodes() {
  static auto* const registry = new CodesRegistry();  // Outlives every engine.
  return *registry;
}

// The weights as one matrix: where they lie, or a copy of weights that are no neighbours.
at::Tensor Merged(at::TensorList weights) {
  const at::Tensor merged = InOne(weights);
  return merged.defined() ? merged : at::cat(weights);
}

template <class Make>
auto Making(const Make& make) {
  const std::array<const c10::IValue, 0> inputs = {};
  RECORD_FUNCTION("dtrain::fp8_weight_codes", inputs);  // A test counts it.
  return make();
}

}  // namespace

KeptWeightCodes::KeptWeightCodes(std::vector<at::Tensor> weights) : weights_(std::move(weights)) {
  CodesRegistry& registry = TheCodes();
  const std::lock_guard lock(registry.mutex);
  for (size_t i = 0; i < weights_.size(); ++i) {
    registry.places[weights_[i].unsafeGetTensorImpl()] = {this, i};
  }
}

KeptWeightCodes::~KeptWeightCodes() {
  CodesRegistry& registry = TheCodes();
  const std::lock_guard lock(registry.mutex);
  for (const at::Tensor& weight : weights_) {
    const auto found = registry.places.find(weight.unsafeGetTensorImpl());
    if (found != registry.places.end() && found->second.owner == this) {
      registry.places.erase(found);
    }
  }
}

void KeptWeightCodes::Open(Lifetime lifetime) {
  CodesRegistry& registry = TheCodes();
  const std::lock_guard lock(registry.mutex);
  opening_ = ++registry.openings;
  lasting_ = lifetime == Lifetime::kLasting;
  if (!lasting_) {
    codes_.clear();
  }
  codes_.resize(weights_.size());
  for (Codes& codes : codes_) {
    codes.source.weights.clear();
  }
}

void KeptWeightCodes::Close() {
  CodesRegistry& registry = TheCodes();
  const std::lock_guard lock(registry.mutex);
  opening_ = 0;
  if (!lasting_) {
    codes_.clear();
  }
}

bool KeptWeightCodes::Refresh() {
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(TheCodes().mutex);
  if (!lasting_) {
    return true;
  }
  for (Codes& codes : codes_) {
    if (codes.weights.empty()) {
      continue;
    }
    Source source = SourceOf(codes.weights, codes.source.scaling);
    if (opening_ != 0 && codes.source == source) {
      continue;
    }
    if (!CanBeMadeAgain(codes)) {
      if (codes.captured) {
        return false;
      }
      codes = {};
      continue;
    }
    Making([&] {
      ToFp8Again(Merged(codes.weights), kernels::Fp8Format::kE4m3, {codes.as_is, codes.transposed});
    });
    codes.source = std::move(source);
  }
  return true;
}

void KeptWeightCodes::NoteWrites() { ++TheCodes().writes; }

KeptWeightCodes::Source KeptWeightCodes::SourceOf(at::TensorList weights,
                                                  Fp8Options::Scaling scaling) {
  Source source{.weights = {},
                .writes = TheCodes().writes,
                .scaling = scaling,
                .stream = OnGpu(weights[0]) ? GpuLaunch(weights[0]).stream() : nullptr};
  for (const at::Tensor& weight : weights) {
    source.weights.push_back({weight.const_data_ptr(), static_cast<uint32_t>(weight._version())});
  }
  return source;
}

bool KeptWeightCodes::CanBeMadeAgain(const Codes& codes) {
  const at::Tensor& made = codes.as_is.codes;
  const auto fits = [&](const at::Tensor& weight) {
    return weight.dim() == 2 && weight.size(1) == made.size(1) && Fusable(weight) &&
           weight.scalar_type() == codes.weights[0].scalar_type() &&
           weight.device() == made.device();
  };
  return made.defined() && std::all_of(codes.weights.begin(), codes.weights.end(), fits) &&
         Rows(codes.weights) == made.size(0);
}

KeptWeightCodes::Codes* KeptWeightCodes::Find(size_t index, const Source& source, Form form) {
  Codes& codes = codes_[index];
  if (!(codes.source == source) || !codes.of(form).codes.defined()) {
    return nullptr;
  }
  if (capturing_) {
    if (!lasting_ || !codes.as_is.codes.defined()) {
      return nullptr;  // It could not be made again.
    }
    codes.captured = true;
  }
  return &codes;
}

void KeptWeightCodes::Keep(size_t index, at::TensorList weights, const Source& source, Form form,
                           const Fp8Matrix& made) {
  Codes& codes = codes_[index];
  if (!(codes.source == source)) {
    if (codes.captured) {
      return;
    }
    codes = {.weights = weights.vec(), .source = source, .as_is = {}, .transposed = {}};
  }
  codes.of(form) = made;
}

Fp8Matrix KeptWeightCodes::Get(at::TensorList weights, Fp8Options::Scaling scaling, Form form,
                               absl::FunctionRef<Fp8Matrix()> make) {
  // Without a counter of writes; and autograd could not save what is made now.
  if (c10::InferenceMode::is_enabled() ||
      std::any_of(weights.begin(), weights.end(),
                  [](const at::Tensor& weight) { return weight.is_inference(); })) {
    return Making(make);
  }
  const Source source = SourceOf(weights, scaling);
  CodesRegistry& registry = TheCodes();
  uint64_t opening = 0;
  {
    const std::lock_guard lock(registry.mutex);
    const CodesPlace place = registry.Find(weights);
    KeptWeightCodes* const owner = place.owner;
    if (owner != nullptr && owner->opening_ != 0 && (registry.without == 0 || owner->capturing_)) {
      if (Codes* const codes = owner->Find(place.index, source, form); codes != nullptr) {
        return codes->of(form);
      }
      opening = registry.without == 0 ? owner->opening_ : 0;
    }
  }
  Fp8Matrix result = Making(make);
  if (opening != 0) {
    const std::lock_guard lock(registry.mutex);
    const CodesPlace place = registry.Find(weights);
    // The object may have been closed meanwhile, or be gone.
    if (place.owner != nullptr && place.owner->opening_ == opening) {
      place.owner->Keep(place.index, weights, source, form, result);
    }
  }
  return result;
}

WithoutKeptCodes::WithoutKeptCodes(KeptWeightCodes* lasting) : lasting_(lasting) {
  CodesRegistry& registry = TheCodes();
  const std::lock_guard lock(registry.mutex);
  ++registry.without;
  if (lasting_ != nullptr) {
    lasting_->capturing_ = true;
  }
}

WithoutKeptCodes::~WithoutKeptCodes() {
  CodesRegistry& registry = TheCodes();
  const std::lock_guard lock(registry.mutex);
  --registry.without;
  if (lasting_ != nullptr) {
    lasting_->capturing_ = false;
  }
}

Fp8Matrix WeightsToFp8(at::TensorList weights, Fp8Options::Scaling scaling) {
  return KeptWeightCodes::Get(weights, scaling, KeptWeightCodes::Form::kAsIs, [&] {
    return ToFp8(Merged(weights), kernels::Fp8Format::kE4m3, scaling);
  });
}

Fp8Matrix TransposedWeightsToFp8(at::TensorList weights, Fp8Options::Scaling scaling,
                                 const Fp8Matrix& known) {
  return KeptWeightCodes::Get(weights, scaling, KeptWeightCodes::Form::kTransposed, [&] {
    return TransposedToFp8(Merged(weights), kernels::Fp8Format::kE4m3, known);
  });
}

}  // namespace dtrain::ops
