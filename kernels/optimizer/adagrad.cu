#include "kernels/optimizer/adagrad_math.h"
#include "kernels/optimizer/one_state.cuh"

namespace dtrain::kernels {

absl::Status AdagradCuda(int64_t n, float* p, const float* g, MutableFlat sum,
                         BFloat16* p_bf16_or_null, const AdagradStepScalars* device_scalars,
                         CudaStream stream) {
  return LaunchOneState<AdagradRule>("adagrad", n, p, g, sum, p_bf16_or_null, device_scalars,
                                     stream);
}

}  // namespace dtrain::kernels
