#include "base/check.h"
#include "kernels/optimizer/adamw_stochastic.h"
#include "kernels/simd/simd_table.h"
#include "kernels/write_mode.h"

namespace dtrain::kernels {

void AdamWStochasticCpu(int64_t n, int64_t first, float* p, const float* g, BFloat16* m,
                        BFloat16* v, BFloat16* p_bf16_or_null, const AdamWOptions& options,
                        const PhiloxStream& stream, ParallelFor parallel_for) {
  DT_CHECK_GE(first, 0);
  const AdamWStepScalars scalars = MakeAdamWStepScalars(options);
  const auto loop = ActiveTable().random.adamw;
  parallel_for(n, kElementGrain, [&](int64_t begin, int64_t end) {
    loop(end - begin, first + begin, p + begin, g + begin, m + begin, v + begin,
         p_bf16_or_null == nullptr ? nullptr : p_bf16_or_null + begin, scalars, stream);
  });
}

}  // namespace dtrain::kernels
