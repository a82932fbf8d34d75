#include "runtime/device/allocator_settings.h"

#include "base/log.h"

namespace dtrain {

std::string AllocatorSettings(comm::CudaApi& api, const Environment& environment) {
  if (AllocatorIsConfigured(environment)) {
    return "";
  }
  const comm::CudaResult tried = api.TryExportableMemory();
  if (tried == comm::CudaResult::kSuccess) {
    return "expandable_segments:True";
  }
  DT_LOG(Warning) << "LibTorch's GPU allocator keeps blocks of fixed sizes, which may leave holes "
                     "in memory: this machine gives no memory that can be exported ("
                  << api.ErrorString(tried) << ")";
  return "";
}

}  // namespace dtrain
