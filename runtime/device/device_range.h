// Addresses of a GPU without memory behind them, and blocks of memory that are mapped there and
// elsewhere again: where ZeRO stage 3 keeps gathered weights, so that tensors over them stay valid
// while their memory comes and goes. Addresses that are not mapped may not be touched: the GPU's
// context would be lost. For the thread that trains.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/device/device.h"

namespace dtrain {

class DeviceRange {
 public:
  // At least `bytes`, in whole granules.
  static absl::StatusOr<std::shared_ptr<DeviceRange>> Create(const Device& device, size_t bytes);
  DeviceRange(const DeviceRange&) = delete;
  DeviceRange& operator=(const DeviceRange&) = delete;
  // REQUIRES: nothing is mapped.
  ~DeviceRange();

  std::byte* data() const { return data_; }
  // Blocks are of whole granules and lie at multiples of them: 2 MiB.
  static absl::StatusOr<size_t> Granule(const Device& device);

 private:
  DeviceRange(comm::CudaApi* api, std::byte* data, size_t bytes)
      : api_(api), data_(data), bytes_(bytes) {}
  comm::CudaApi* const api_;
  std::byte* const data_;
  const size_t bytes_;
};

class DeviceBlock {
 public:
  // ResourceExhausted names the size, what is free and `what` it is for. `bytes`: whole granules.
  static absl::StatusOr<std::unique_ptr<DeviceBlock>> Create(const Device& device, size_t bytes,
                                                             absl::string_view what);
  DeviceBlock(const DeviceBlock&) = delete;
  DeviceBlock& operator=(const DeviceBlock&) = delete;
  // REQUIRES: no work that is queued uses it where it is mapped.
  ~DeviceBlock();

  // Moves its first `bytes`, in whole granules, to `data`. Its content is undefined. REQUIRES: as
  // the destructor.
  absl::Status MapAt(std::byte* data, size_t bytes);
  size_t bytes() const { return bytes_; }

 private:
  DeviceBlock(const Device& device, comm::CudaMemory* memory, size_t bytes)
      : device_(device), memory_(memory), bytes_(bytes) {}
  absl::Status Unmap();
  const Device& device_;
  comm::CudaMemory* const memory_;
  const size_t bytes_;
  std::byte* mapped_ = nullptr;
  size_t mapped_bytes_ = 0;
};

}  // namespace dtrain
