#include "kernels/optimizer/lion_math.h"
#include "kernels/optimizer/one_state.cuh"

namespace dtrain::kernels {

absl::Status LionCuda(int64_t n, float* p, const float* g, MutableFlat moment,
                      BFloat16* p_bf16_or_null, const LionStepScalars* device_scalars,
                      CudaStream stream) {
  return LaunchOneState<LionRule>("lion", n, p, g, moment, p_bf16_or_null, device_scalars, stream);
}

}  // namespace dtrain::kernels
