// The scalar variant of every CPU kernel; its compile flags are in CMakeLists.txt.
#include "kernels/simd/simd_bits_scalar.h"
#define DT_SIMD scalar
#include "kernels/simd/simd_loops.h"

namespace dtrain::kernels {

const SimdTable& ScalarTable() {
  static constexpr SimdTable kTable = scalar::MakeTable(SimdLevel::kScalar);
  return kTable;
}

}  // namespace dtrain::kernels
