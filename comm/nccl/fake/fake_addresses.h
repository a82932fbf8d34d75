// FakeCuda's virtual memory: addresses of the host that nobody may touch until memory is mapped
// there, so that an operation that comes before its memory, or after it, ends the process as it
// would end a CUDA context.
//
// A call that CUDA would not allow gives kInvalidValue. Thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>

#include "comm/nccl/cuda_api.h"

namespace dtrain::comm {

class FakeAddresses {
 public:
  static constexpr size_t kGranularity = 4096;  // A page; 2 MiB on GPUs.

  FakeAddresses() = default;
  FakeAddresses(const FakeAddresses&) = delete;
  FakeAddresses& operator=(const FakeAddresses&) = delete;
  ~FakeAddresses();

  CudaResult Reserve(void** data, size_t bytes);
  CudaResult Free(void* data, size_t bytes);
  CudaResult Create(CudaMemory** memory, size_t bytes);
  CudaResult Destroy(CudaMemory* memory);
  CudaResult Map(void* data, size_t bytes, CudaMemory* memory);
  CudaResult Unmap(void* data, size_t bytes);

  void Limit(size_t bytes);
  bool IsMapped(const void* data, size_t bytes) const;
  int unmaps() const;
  int live_handles() const;

 private:
  struct Memory {
    int file = -1;
    size_t bytes = 0;
    bool mapped = false;
  };
  struct Mapping {
    size_t bytes = 0;
    CudaMemory* memory = nullptr;
  };

  mutable std::mutex mutex_;
  std::map<char*, size_t> reserved_;
  std::map<CudaMemory*, Memory> memory_;
  std::map<char*, Mapping> mapped_;
  size_t limit_ = SIZE_MAX;
  size_t created_ = 0;  // Bytes.
  int unmaps_ = 0;
};

}  // namespace dtrain::comm
