// The avx2 variant of every CPU kernel; its compile flags are in CMakeLists.txt.
#include "kernels/simd/simd_bits_avx2.h"
#define DT_SIMD avx2
#include "kernels/simd/simd_loops.h"

namespace dtrain::kernels {

const SimdTable& Avx2Table() {
  static constexpr SimdTable kTable = avx2::MakeTable(SimdLevel::kAvx2);
  return kTable;
}

}  // namespace dtrain::kernels
