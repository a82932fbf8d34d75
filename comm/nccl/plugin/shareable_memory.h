// Device memory that NCCL can share with other processes by a handle, like memory of ncclMemAlloc.
// Memory of cudaMalloc has no such handle, and registering it does nothing within a node.
//
// NCCL chooses NVLink SHARP (NVLS) by itself where GPUs and switches have it. It then works on a
// buffer in place, without a copy, if it can bind the buffer to a multicast object
// (tryRegisterBuffer and nvlsRegisterBuffer in src/transport/nvls.cc of NCCL 2.28.9). The buffer
// must have a handle for other processes and be registered by ncclCommRegister. The registered
// range must begin at a multiple of the granularity and be one piece of memory to the end of its
// last granule, and the ranks of a node must use it at the same offset. A block of this class that
// is given whole to DeviceGroup::RegisterDevice fulfils all that, so dtrain calls nothing else for
// NVLS. Buffers in which stage 3 gathers weights are not registered: they are addresses over which
// memory moves (runtime/device/device_range.h).
#pragma once

#include <cstddef>
#include <mutex>
#include <unordered_map>

#include "comm/nccl/cuda_api.h"

namespace dtrain::comm {

// Thread-safe.
class ShareableMemory {
 public:
  // Rounds up to the driver's granularity (2 MiB), which runtime/plan/memory/memory_plan.h counts.
  // Falls back to cudaMalloc for less than that and where such memory is refused. Running out of
  // memory is an error at once.
  CudaResult Malloc(void** data, size_t bytes);
  // Waits for the block's device first, and frees nothing if that wait fails. REQUIRES: no thread
  // captures a stream of the device, because CUDA forbids to wait for such a device, and the
  // attempt spoils the capture.
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
