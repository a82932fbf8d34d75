#include "kernels/simd/variant.h"

#include <atomic>

#include "base/check.h"
#include "kernels/simd/simd_table.h"

namespace dtrain::kernels {
namespace {

const SimdTable& TableFor(SimdLevel level) {
#if defined(__x86_64__)
  if (level == SimdLevel::kAvx512) {
    return Avx512Table();
  }
  if (level == SimdLevel::kAvx2) {
    return Avx2Table();
  }
#endif
  return ScalarTable();
}

std::atomic<const SimdTable*>& Active() {
  static std::atomic<const SimdTable*> active{&TableFor(CpuSimdLevel())};
  return active;
}

}  // namespace

const SimdTable& ActiveTable() { return *Active().load(std::memory_order_acquire); }

absl::string_view ActiveVariant() { return SimdLevelName(ActiveTable().level); }

void SetVariantForTesting(SimdLevel level) {
  DT_CHECK(level <= CpuSimdLevel());
  Active().store(&TableFor(level), std::memory_order_release);
}

}  // namespace dtrain::kernels
