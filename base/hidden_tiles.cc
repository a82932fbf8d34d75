#include "base/hidden_tiles.h"

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
         "1Dh is empty): bf16 products on the CPU do without AMX "
         "(ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16, unless it was set)";
}

}  // namespace dtrain
