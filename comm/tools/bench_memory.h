// The two buffers that a benchmarked collective works on: host memory, plain or registered, or a
// GPU's. Owns the buffers; not thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/group.h"
#include "comm/nccl/device_group.h"

namespace dtrain::comm {

class BenchMemory {
 public:
  virtual ~BenchMemory() = default;

  char* input() const { return input_; }
  char* output() const { return output_; }
  Device device() const { return device_; }

  // Blocking: bytes of the host to `at` in either buffer.
  virtual absl::Status Store(char* at, const char* from, size_t bytes) = 0;
  // Blocking: the bytes at `at`, where the host can read them until the next call.
  virtual absl::StatusOr<const char*> View(const char* at, size_t bytes) = 0;
  // Copies as a caller would whose result must lie elsewhere; a collective that is started next
  // sees the copy.
  virtual absl::Status Copy(char* to, const char* from, size_t bytes) = 0;
  // Blocks until the result of `work` is in memory.
  virtual absl::Status Finish(const Work& work) = 0;
  // A copy within this memory, done when it returns: for the limit.
  virtual absl::Status CopyAndFinish(char* to, const char* from, size_t bytes) = 0;

 protected:
  char* input_ = nullptr;
  char* output_ = nullptr;
  Device device_ = {};
};

// Collective where `registered`: the buffers are symmetric memory that `group` reaches without a
// copy, as the engine's gradients are. `group` outlives it.
absl::StatusOr<std::unique_ptr<BenchMemory>> MakeHostMemory(Group& group, size_t bytes,
                                                            bool registered);

// Memory of the current device; `stream` is the group's compute stream. All arguments must outlive
// the result.
absl::StatusOr<std::unique_ptr<BenchMemory>> MakeDeviceMemory(DeviceGroup& group, CudaApi& cuda,
                                                              CudaStream* stream, int device,
                                                              size_t bytes, bool registered);

}  // namespace dtrain::comm
