#include "kernels/optimizer/adamw_rounded.h"
#include "kernels/simd/simd_table.h"

namespace dtrain::kernels {

WeightSums AdamWRoundedCpu(const AdamWRoundedArgs& args, const AdamWOptions& options) {
  return ActiveTable().adamw_rounded(args, MakeAdamWStepScalars(options));
}

}  // namespace dtrain::kernels
