// The avx512 variant of every CPU kernel; its compile flags are in CMakeLists.txt.
#include "kernels/simd/simd_bits_avx512.h"
#define DT_SIMD avx512
#include "kernels/simd/simd_loops.h"

namespace dtrain::kernels {

const SimdTable& Avx512Table() {
  static constexpr SimdTable kTable = avx512::MakeTable(SimdLevel::kAvx512);
  return kTable;
}

}  // namespace dtrain::kernels
