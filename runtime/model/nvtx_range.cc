#include "runtime/model/nvtx_range.h"

#include "nvtx3/nvToolsExt.h"

namespace dtrain {

NvtxRange::NvtxRange(const char* name) { nvtxRangePushA(name); }
NvtxRange::~NvtxRange() { nvtxRangePop(); }

}  // namespace dtrain
