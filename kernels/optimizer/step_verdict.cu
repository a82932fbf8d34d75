#include "kernels/cuda/cuda_launch.h"
#include "kernels/optimizer/step_verdict.h"

namespace dtrain::kernels {
namespace {

// One warp: the sums are a few numbers, and every thread takes them in the same order.
__global__ void __launch_bounds__(32)
    StepVerdictKernel(const StepTally* tallies, int ranks, bool of_shards, const StepInputs* inputs,
                      StepScalarsView scalars, StepVerdictNumbers* verdict) {
  const StepVerdictNumbers mine = StepVerdictOf(tallies, ranks, of_shards, *inputs);
  for (int i = static_cast<int>(threadIdx.x); i < scalars.count; i += 32) {
    SetStepScalars(mine, *inputs, scalars, i);
  }
  if (threadIdx.x == 0) {
    *verdict = mine;
  }
}

}  // namespace

absl::Status StepVerdictCuda(const StepTally* tallies, int ranks, bool of_shards,
                             const StepInputs* inputs, StepScalarsView scalars,
                             StepVerdictNumbers* verdict, CudaStream stream) {
  RequireStream(stream);
  StepVerdictKernel<<<1, 32, 0, stream>>>(tallies, ranks, of_shards, inputs, scalars, verdict);
  return LaunchStatus("step verdict");
}

}  // namespace dtrain::kernels
