// Device memory of which NCCL can give the other processes of its node a handle. Registering memory
// of cudaMalloc, which has none, does nothing within a node.
#pragma once

#include <cstddef>
#include <mutex>
#include <unordered_map>

#include "comm/nccl/cuda_api.h"

namespace dtrain::comm {

// Thread-safe.
class ShareableMemory {
 public:
  // Falls back to cudaMalloc for less than the driver's granularity and where such memory is
  // refused. Out of memory is told, not tried again.
  CudaResult Malloc(void** data, size_t bytes);
  // Waits for the device first.
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
