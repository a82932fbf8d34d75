// The ranks' losses and norms of a step, summed on the device, and the decision that follows for
// its update. No host takes part, so none has to wait.
#pragma once

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/host_device.h"
#include "kernels/optimizer/grad_norm.h"

namespace dtrain::kernels {

// One rank's contribution, in device memory.
struct StepTally {
  double loss_sum = 0;
  double sum_of_squares = 0;  // Over the reduced gradient, or this rank's shard of it.
};

// The inputs that change from step to step, in device memory at a fixed address.
struct StepInputs {
  double unscale = 1;   // The mean's gradient is the reduced one times this; 0: no sample counts.
  double norm_max = 0;  // 0: no clipping by the norm.
};

struct StepVerdictNumbers {
  double loss_sum = 0;
  double sum_of_squares = 0;
  int32_t skip = 0;  // Not 0: the gradient is not finite or of no sample, nothing is updated.
  int32_t unused = 0;
};

// The scalars of `count` parameter groups, `stride` bytes each, whatever the optimizer: grad_scale
// is the first field of each, and an int32 `skip` lies at `skip_offset`.
struct StepScalarsView {
  void* data = nullptr;
  int32_t count = 0;
  int32_t stride = 0;
  int32_t skip_offset = 0;
};

// Sums in rank order, so every rank gets the same bits; the clip factor is ClipFactor's.
DT_HOST_DEVICE inline StepVerdictNumbers StepVerdictOf(const StepTally* tallies, int ranks,
                                                       bool of_shards, const StepInputs& inputs) {
  StepVerdictNumbers verdict;
  for (int rank = 0; rank < ranks; ++rank) {
    verdict.loss_sum += tallies[rank].loss_sum;
    if (of_shards || rank == 0) {
      verdict.sum_of_squares += tallies[rank].sum_of_squares;
    }
  }
  // Infinities and NaNs alone have no difference of zero with themselves.
  const bool finite = verdict.sum_of_squares - verdict.sum_of_squares == 0;
  verdict.skip = finite && inputs.unscale != 0 ? 0 : 1;
  return verdict;
}

// Writes grad_scale and skip of group `index`.
DT_HOST_DEVICE inline void SetStepScalars(const StepVerdictNumbers& verdict,
                                          const StepInputs& inputs, const StepScalarsView& scalars,
                                          int index) {
  auto* const group = static_cast<char*>(scalars.data) + index * scalars.stride;
  const double factor =
      verdict.skip != 0
          ? 0
          : ClipFactor(inputs.unscale * sqrt(verdict.sum_of_squares), inputs.norm_max);
  *reinterpret_cast<float*>(group) = static_cast<float>(inputs.unscale * factor);
  *reinterpret_cast<int32_t*>(group + scalars.skip_offset) = verdict.skip;
}

// *verdict = StepVerdictOf(tallies [ranks], of_shards, *inputs), then SetStepScalars for every
// group. All device pointers. Queues one kernel on `stream`, does not synchronise; Internal when
// the launch fails.
absl::Status StepVerdictCuda(const StepTally* tallies, int ranks, bool of_shards,
                             const StepInputs* inputs, StepScalarsView scalars,
                             StepVerdictNumbers* verdict, CudaStream stream);

}  // namespace dtrain::kernels
