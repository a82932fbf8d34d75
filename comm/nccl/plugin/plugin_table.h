// The one C symbol of libdtrain_cuda.so, and the table that it gives to the program that opens it.
//
// Both sides are built from one tree. The program compares `version`, so that a plugin of another
// build is refused and not called with a wrong layout.
#pragma once

#include <string>

#include "comm/nccl/cuda_api.h"
#include "comm/nccl/nccl_api.h"
#include "comm/nccl/nccl_kernels.h"

namespace dtrain::comm {

struct PluginTable {
  const char* version = nullptr;  // DTRAIN_PLUGIN_VERSION of the build.
  // Never null. On a machine without a GPU, DeviceCount gives an error.
  CudaApi* (*cuda)() = nullptr;
  // Opens libnccl.so.2 at the first call. Null if it cannot, and then `*error` says why.
  NcclApi* (*nccl)(std::string* error) = nullptr;
  NcclKernels nccl_kernels;
  // A kernels::CudaKernelTable (kernels/cuda/cuda_table.h). It is opaque here because comm does not
  // include kernels.
  const void* kernels = nullptr;
};

inline constexpr char kPluginSymbol[] = "dtrain_cuda_plugin";
inline constexpr char kPluginFile[] = "libdtrain_cuda.so";
using PluginEntry = const PluginTable*();

}  // namespace dtrain::comm
