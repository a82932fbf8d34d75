#include "runtime/device/device_stream.h"

#include "base/status.h"

namespace dtrain {

absl::StatusOr<std::unique_ptr<DeviceStream>> DeviceStream::Create(const Device& device) {
  comm::CudaStream* stream = nullptr;
  DT_RETURN_IF_ERROR(
      device.Check(device.api().StreamCreate(&stream, /*high_priority=*/true), "cudaStreamCreate"));
  return std::unique_ptr<DeviceStream>(new DeviceStream(device, stream));
}

DeviceStream::~DeviceStream() { (void)device_.api().StreamDestroy(stream_); }

absl::Status DeviceStream::Copy(void* to, const void* from, size_t bytes) const {
  return device_.Check(device_.api().CopyAsync(to, from, bytes, stream_), "cudaMemcpyAsync");
}

absl::Status DeviceStream::Record(const DeviceEvent& event) const {
  return device_.Check(device_.api().EventRecord(event.handle(), stream_), "cudaEventRecord");
}

absl::Status DeviceStream::WaitFor(const DeviceEvent& event) const {
  return device_.Check(device_.api().StreamWaitEvent(stream_, event.handle()),
                       "cudaStreamWaitEvent");
}

absl::Status DeviceStream::Synchronize() const {
  return device_.Check(device_.api().StreamSynchronize(stream_), "cudaStreamSynchronize");
}

}  // namespace dtrain
