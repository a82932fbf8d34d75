// The one symbol that libdtrain_cuda.so exports.
#include "comm/nccl/plugin/nccl_kernels_cuda.h"
#include "comm/nccl/plugin/plugin_table.h"
#include "comm/nccl/plugin/real_cuda_api.h"
#include "comm/nccl/plugin/real_nccl_api.h"

// Defined in kernels/cuda/cuda_table.cc, which the plugin links.
extern "C" const void* dtrain_cuda_kernel_table();

extern "C" __attribute__((visibility("default"))) const dtrain::comm::PluginTable*
dtrain_cuda_plugin() {
  using dtrain::comm::PluginTable;
  static const PluginTable table = [] {
    PluginTable made;
    made.version = DTRAIN_PLUGIN_VERSION;
    made.cuda = dtrain::comm::RealCuda;
    made.nccl = dtrain::comm::RealNccl;
    made.nccl_kernels = dtrain::comm::CudaNcclKernels();
    made.kernels = dtrain_cuda_kernel_table();
    return made;
  }();
  return &table;
}
