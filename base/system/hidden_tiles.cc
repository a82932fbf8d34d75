#include "base/system/hidden_tiles.h"

#include <cstdlib>

#include "base/log.h"

namespace dtrain {

void AvoidHiddenTiles(bool tell) {
  if (!AmxTilesAreHidden() ||
      setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16", /*overwrite=*/0) != 0 || !tell) {
    return;
  }
  DT_LOG(Warning)
      << "this host's CPU announces AMX, but its hypervisor hides the tiles (CPUID leaf "
         "1Dh is empty): bf16 matrix products on the CPU are computed without AMX "
         "(ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16, if it was not set)";
}

}  // namespace dtrain
