#include "runtime/device/device_range.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace dtrain {

absl::StatusOr<size_t> DeviceRange::Granule(const Device& device) {
  size_t bytes = 0;
  DT_RETURN_IF_ERROR(
      device.Check(device.api().MemoryGranularity(&bytes), "cuMemGetAllocationGranularity"));
  return bytes;
}

absl::StatusOr<std::shared_ptr<DeviceRange>> DeviceRange::Create(const Device& device,
                                                                 size_t bytes) {
  DT_ASSIGN_OR_RETURN(const size_t granule, Granule(device));
  bytes = std::max(granule, (bytes + granule - 1) / granule * granule);
  void* data = nullptr;
  DT_RETURN_IF_ERROR(
      device.Check(device.api().ReserveAddresses(&data, bytes),
                   absl::StrCat("cuMemAddressReserve of ", bytes, " bytes for the weights")));
  return std::shared_ptr<DeviceRange>(
      new DeviceRange(&device.api(), static_cast<std::byte*>(data), bytes));
}

DeviceRange::~DeviceRange() { (void)api_->FreeAddresses(data_, bytes_); }

absl::StatusOr<std::unique_ptr<DeviceBlock>> DeviceBlock::Create(const Device& device, size_t bytes,
                                                                 absl::string_view what) {
  comm::CudaMemory* memory = nullptr;
  DT_RETURN_IF_ERROR(device.Check(device.api().SetDevice(device.place().index), "cudaSetDevice"));
  const comm::CudaResult result =
      WithCacheEmptied(device, [&] { return device.api().CreateMemory(&memory, bytes); });
  if (result != comm::CudaResult::kSuccess) {
    return OutOfDeviceMemory(device, bytes, what, result);
  }
  return std::unique_ptr<DeviceBlock>(new DeviceBlock(device, memory, bytes));
}

DeviceBlock::~DeviceBlock() {
  Unmap().IgnoreError();
  (void)device_.api().DestroyMemory(memory_);
}

absl::Status DeviceBlock::Unmap() {
  if (mapped_ == nullptr) {
    return absl::OkStatus();
  }
  std::byte* const from = std::exchange(mapped_, nullptr);
  return device_.Check(device_.api().UnmapMemory(from, mapped_bytes_), "cuMemUnmap");
}

absl::Status DeviceBlock::MapAt(std::byte* data, size_t bytes) {
  DT_RETURN_IF_ERROR(Unmap());
  // Any thread of the program may read a weight, but memory is mapped for the device that is
  // current on this thread.
  DT_RETURN_IF_ERROR(
      device_.Check(device_.api().SetDevice(device_.place().index), "cudaSetDevice"));
  DT_RETURN_IF_ERROR(device_.Check(device_.api().MapMemory(data, bytes, memory_), "cuMemMap"));
  mapped_ = data;
  mapped_bytes_ = bytes;
  return absl::OkStatus();
}

}  // namespace dtrain
