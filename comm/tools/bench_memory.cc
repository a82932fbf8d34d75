#include "comm/tools/bench_memory.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace dtrain::comm {
namespace {

class HostMemory : public BenchMemory {
 public:
  absl::Status Store(char* at, const char* from, size_t bytes) override {
    std::memcpy(at, from, bytes);
    return absl::OkStatus();
  }
  absl::StatusOr<const char*> View(const char* at, size_t /*bytes*/) override { return at; }
  absl::Status Copy(char* to, const char* from, size_t bytes) override {
    std::memcpy(to, from, bytes);
    return absl::OkStatus();
  }
  absl::Status CopyAndFinish(char* to, const char* from, size_t bytes) override {
    return Copy(to, from, bytes);
  }
  absl::Status Finish(const Work& work) override { return work.Wait(); }
};

class PlainMemory final : public HostMemory {
 public:
  explicit PlainMemory(size_t bytes) : both_{std::vector<char>(bytes), std::vector<char>(bytes)} {
    input_ = both_[0].data();
    output_ = both_[1].data();
  }

 private:
  std::vector<char> both_[2];
};

class RegisteredBenchMemory final : public HostMemory {
 public:
  absl::Status Open(Group& group, size_t bytes) {
    for (Place& place : places_) {
      DT_ASSIGN_OR_RETURN(place.buffer, SymmetricBuffer::Create(bytes, "bench"));
      DT_ASSIGN_OR_RETURN(place.registration, group.Register(place.buffer));
    }
    input_ = static_cast<char*>(places_[0].buffer->data());
    output_ = static_cast<char*>(places_[1].buffer->data());
    return absl::OkStatus();
  }

 private:
  struct Place {
    std::shared_ptr<SymmetricBuffer> buffer;
    std::unique_ptr<Registration> registration;
  };
  Place places_[2];
};

class DeviceMemory final : public BenchMemory {
 public:
  DeviceMemory(DeviceGroup& group, CudaApi& cuda, CudaStream* stream, int device)
      : group_(group), cuda_(cuda), stream_(stream) {
    device_ = {DeviceKind::kCuda, device};
  }
  ~DeviceMemory() override {
    registrations_[0].reset();
    registrations_[1].reset();
    static_cast<void>(cuda_.FreeDevice(input_));
    static_cast<void>(cuda_.FreeDevice(output_));
  }
  absl::Status Open(size_t bytes, bool registered) {
    int which = 0;
    for (char** const place : {&input_, &output_}) {
      void* data = nullptr;
      DT_RETURN_IF_ERROR(Check(cuda_.MallocDevice(&data, bytes), "cudaMalloc"));
      *place = static_cast<char*>(data);
      if (registered) {
        DT_ASSIGN_OR_RETURN(registrations_[which++], group_.RegisterDevice(data, bytes));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Store(char* at, const char* from, size_t bytes) override {
    return CopyAndFinish(at, from, bytes);
  }
  absl::StatusOr<const char*> View(const char* at, size_t bytes) override {
    seen_.resize(std::max(seen_.size(), bytes));
    DT_RETURN_IF_ERROR(CopyAndFinish(seen_.data(), at, bytes));
    return seen_.data();
  }
  absl::Status Copy(char* to, const char* from, size_t bytes) override {
    return Check(cuda_.CopyAsync(to, from, bytes, stream_), "cudaMemcpyAsync");
  }
  absl::Status CopyAndFinish(char* to, const char* from, size_t bytes) override {
    DT_RETURN_IF_ERROR(Copy(to, from, bytes));
    return Check(cuda_.StreamSynchronize(stream_), "cudaStreamSynchronize");
  }
  // Waits as a training step does: through the stream, not through the thread that watches the
  // group.
  absl::Status Finish(const Work& /*work*/) override {
    DT_RETURN_IF_ERROR(group_.JoinStream(stream_));
    DT_RETURN_IF_ERROR(Check(cuda_.StreamSynchronize(stream_), "cudaStreamSynchronize"));
    return group_.Health();
  }

 private:
  absl::Status Check(CudaResult result, const char* what) {
    return result == CudaResult::kSuccess
               ? absl::OkStatus()
               : absl::InternalError(absl::StrFormat("%s: %s", what, cuda_.ErrorString(result)));
  }

  DeviceGroup& group_;
  CudaApi& cuda_;
  CudaStream* const stream_;
  std::unique_ptr<Registration> registrations_[2];
  std::vector<char> seen_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<BenchMemory>> MakeHostMemory(Group& group, size_t bytes,
                                                            bool registered) {
  if (!registered) {
    return std::make_unique<PlainMemory>(bytes);
  }
  auto memory = std::make_unique<RegisteredBenchMemory>();
  DT_RETURN_IF_ERROR(memory->Open(group, bytes));
  return memory;
}

absl::StatusOr<std::unique_ptr<BenchMemory>> MakeDeviceMemory(DeviceGroup& group, CudaApi& cuda,
                                                              CudaStream* stream, int device,
                                                              size_t bytes, bool registered) {
  auto memory = std::make_unique<DeviceMemory>(group, cuda, stream, device);
  DT_RETURN_IF_ERROR(memory->Open(bytes, registered));
  return memory;
}

}  // namespace dtrain::comm
