#include "bench/mfu/measure_steps.h"

#include <algorithm>

#include "base/status.h"

namespace dtrain::bench {
namespace {

constexpr int kStepsBeforeGraphs = 4;  // runtime/engine/device/step_graphs.h says why.
constexpr int kOfNewSizes = 2;

double Seconds(int64_t nanos) { return static_cast<double>(nanos) * 1e-9; }

}  // namespace

int UnmeasuredWholeSteps(const MfuOptions& options) {
  const int for_sizes = options.short_micro_batches > 0 ? kOfNewSizes : 0;
  const int for_graphs = options.device == "cpu" ? 0 : kStepsBeforeGraphs - options.warm_up;
  return std::max(for_sizes, for_graphs);
}

absl::StatusOr<MeasuredSteps> MeasureSteps(int steps, absl::FunctionRef<absl::Status()> step,
                                           absl::FunctionRef<absl::Status()> synchronize,
                                           absl::FunctionRef<int64_t()> nanos) {
  MeasuredSteps measured;
  DT_RETURN_IF_ERROR(synchronize());
  const int64_t start = nanos();
  int64_t before = start;
  for (int i = 0; i < steps; ++i) {
    DT_RETURN_IF_ERROR(step());
    const int64_t now = nanos();
    measured.call_s.push_back(Seconds(now - before));
    before = now;
  }
  DT_RETURN_IF_ERROR(synchronize());
  measured.total_s = Seconds(nanos() - start);
  return measured;
}

}  // namespace dtrain::bench
