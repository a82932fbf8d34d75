// Tells a CUDA library by its name: a CPU rank maps none.
#pragma once

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace dtrain {

// Whether `path` is a library of CUDA (driver, runtime, maths, NCCL), LibTorch's CUDA half or
// dtrain's CUDA plugin.
inline bool IsCudaLibrary(absl::string_view path) {
  const absl::string_view name = path.substr(path.rfind('/') + 1);
  for (const char* const start :
       {"libcuda.so", "libcudart", "libnccl", "libcublas", "libcudnn", "libcufft", "libcurand",
        "libcusolver", "libcusparse", "libnvrtc", "libnvJitLink", "libnvToolsExt", "libcupti",
        "libcufile", "libnvshmem", "libtorch_cuda", "libc10_cuda", "libnvidia-ml",
        "libdtrain_cuda"}) {
    if (absl::StartsWith(name, start)) {
      return true;
    }
  }
  return false;
}

}  // namespace dtrain
