#include "runtime/data/sample_order.h"

#include <algorithm>

#include "base/numeric/prng.h"

namespace dtrain {

SampleOrder::Place SampleOrder::At(int64_t sample) const {
  const int64_t epoch = sample / options_.epoch_samples;
  const auto number = static_cast<uint64_t>(sample % options_.epoch_samples);
  if (!options_.shuffle) {
    return {epoch, static_cast<int64_t>(number)};
  }
  const uint64_t seed = MixBits(options_.seed ^ MixBits(static_cast<uint64_t>(epoch)));
  const IndexPermutation permutation(static_cast<uint64_t>(options_.size), seed);
  return {epoch, static_cast<int64_t>(permutation(number))};
}

int64_t SampleOrder::Continue(int64_t sample, int64_t epoch_samples) const {
  const int64_t epoch = sample / epoch_samples;
  return epoch * options_.epoch_samples + std::min(sample % epoch_samples, options_.epoch_samples);
}

int64_t EpochSamples(int64_t size, int64_t global_batch, bool drop_last) {
  return drop_last ? size / global_batch * global_batch : size;
}

}  // namespace dtrain
