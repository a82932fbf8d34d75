// How long steps take, and which steps come before. Free of LibTorch.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/mfu/options.h"

namespace dtrain::bench {

// Whole steps between the warm-up and the measured ones. With short warm-up steps two: new sizes
// are met in the first. On a GPU micro-batches may be CUDA graphs (`cuda_graphs`): two steps of a
// run are eager, in the third each kind of micro-batch is eager once more, and in the fourth it is
// captured.
int UnmeasuredWholeSteps(const MfuOptions& options);

struct MeasuredSteps {
  // From one moment at which the device has nothing left to do to the next: one clock over all.
  double total_s = 0;
  // The time of each call. On a GPU a call may return before its step has ended, the first by most.
  std::vector<double> call_s;
};

// `synchronize` waits for the device. `nanos` is a clock's.
absl::StatusOr<MeasuredSteps> MeasureSteps(int steps, absl::FunctionRef<absl::Status()> step,
                                           absl::FunctionRef<absl::Status()> synchronize,
                                           absl::FunctionRef<int64_t()> nanos);

}  // namespace dtrain::bench
