// A stream of a GPU beside the compute stream, for copies that run while it computes.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/device/device.h"

namespace dtrain {

class DeviceStream {
 public:
  // REQUIRES: `device` is a GPU and outlives it.
  static absl::StatusOr<std::unique_ptr<DeviceStream>> Create(const Device& device);
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;
  // Work that is queued still runs: call Synchronize before memory that it uses is given up.
  ~DeviceStream();

  // These queue and do not wait. The direction follows from the pointers.
  absl::Status Copy(void* to, const void* from, size_t bytes) const;
  absl::Status Record(const DeviceEvent& event) const;
  // Later work here comes after what `event` has recorded; nothing, if it never has.
  absl::Status WaitFor(const DeviceEvent& event) const;
  // Blocks until it is empty.
  absl::Status Synchronize() const;

 private:
  DeviceStream(const Device& device, comm::CudaStream* stream) : device_(device), stream_(stream) {}
  const Device& device_;
  comm::CudaStream* const stream_;
};

}  // namespace dtrain
