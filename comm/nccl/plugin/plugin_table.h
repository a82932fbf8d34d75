// The one C symbol of libdtrain_cuda.so, and the table that it gives to the program that opens it.
//
// Both sides are built from one tree; `version` is compared, so that a plugin of another build is
// refused and not called with a wrong layout.
#pragma once

#include <string>

#include "comm/nccl/cuda_api.h"
#include "comm/nccl/nccl_api.h"
#include "comm/nccl/nccl_kernels.h"

namespace dtrain::comm {

struct PluginTable {
  const char* version = nullptr;  // PluginVersion() of the build.
  // Never null; a machine without a GPU shows in DeviceCount.
  CudaApi* (*cuda)() = nullptr;
  // Opens libnccl.so.2 on the first call. Null when it cannot; `*error` says why.
  NcclApi* (*nccl)(std::string* error) = nullptr;
  NcclKernels nccl_kernels;
  // kernels::CudaKernelTable (kernels/cuda/cuda_table.h), opaque here: comm does not know kernels.
  const void* kernels = nullptr;
};

inline constexpr char kPluginSymbol[] = "dtrain_cuda_plugin";
inline constexpr char kPluginFile[] = "libdtrain_cuda.so";
using PluginEntry = const PluginTable*();

}  // namespace dtrain::comm
