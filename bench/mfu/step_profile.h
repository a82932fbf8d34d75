// One step under LibTorch's profiler (Kineto): its breakdown and the cost of its operations.
#pragma once

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/mfu/breakdown.h"
#include "bench/mfu/operation_cost.h"

namespace dtrain::bench {

struct StepProfile {
  Breakdown breakdown;                 // The step's on this rank; with a GPU, the GPU's.
  std::vector<OperationGroup> groups;  // Products and attention, the longest first.
  std::vector<KernelTotal> kernels;    // A GPU's, by name.
  std::vector<KernelTotal> idle_after;
  double seconds = 0;  // The profiled step's, a little more than others'.
};

// Profiles `step`, which this thread runs; `on_gpu`: its kernels are recorded through CUPTI, and
// `step` ends with a synchronisation. A failure of the step is passed on; Internal when the
// profiler saw nothing.
absl::StatusOr<StepProfile> ProfileStep(const std::function<absl::Status()>& step, bool on_gpu);

}  // namespace dtrain::bench
