// Device memory that NCCL can share with other processes by a handle, as memory of ncclMemAlloc.
// Memory of cudaMalloc has no such handle, and registering it does nothing within a node.
#pragma once

#include <cstddef>
#include <mutex>
#include <unordered_map>

#include "comm/nccl/cuda_api.h"

namespace dtrain::comm {

// Thread-safe.
class ShareableMemory {
 public:
  // Rounds up to the driver's granularity (2 MiB). Falls back to cudaMalloc for less than that and
  // where such memory is refused. Running out of memory is an error at once.
  CudaResult Malloc(void** data, size_t bytes);
  // Waits for the block's device first, and frees nothing where that wait fails. REQUIRES: no
  // stream of the device is captured, by whatever thread: CUDA forbids to wait for such a device,
  // and trying spoils the capture.
  CudaResult Free(void* data);

 private:
  struct Block {
    size_t bytes;
    CudaMemory* memory;
    int device;
  };

  std::mutex mutex_;
  std::unordered_map<void*, Block> blocks_;
};

}  // namespace dtrain::comm
