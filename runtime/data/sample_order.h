// Which item of a dataset is sample number n of a run. A pure function; thread-safe.
//
// The samples of a run are an endless row, epoch after epoch. Epoch e is a permutation of the items
// that depends on (seed, e) alone, or their own order, and a number of samples at its end may be
// left out.
#pragma once

#include <cstdint>

namespace dtrain {

struct SampleOrderOptions {
  int64_t size = 0;           // Items in the dataset.
  int64_t epoch_samples = 0;  // Samples in an epoch, at most `size`.
  uint64_t seed = 0;
  bool shuffle = true;
};

class SampleOrder {
 public:
  // REQUIRES: 1 <= epoch_samples <= size.
  explicit SampleOrder(const SampleOrderOptions& options) : options_(options) {}

  struct Place {
    int64_t epoch = 0;
    int64_t index = 0;  // The item in the dataset.
    bool operator==(const Place&) const = default;
  };
  Place At(int64_t sample) const;  // REQUIRES: sample >= 0.

  const SampleOrderOptions& options() const { return options_; }
  // The sample of this order at which a run goes on that stood at `sample` of an order whose epochs
  // had `epoch_samples`: at the same place of the same epoch, or where that is left out, at the end
  // of the epoch.
  int64_t Continue(int64_t sample, int64_t epoch_samples) const;

 private:
  SampleOrderOptions options_;
};

// Samples in an epoch of `size` items: all, or with `drop_last` those of whole global batches.
int64_t EpochSamples(int64_t size, int64_t global_batch, bool drop_last);

}  // namespace dtrain
