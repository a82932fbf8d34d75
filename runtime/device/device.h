// The device on which a rank trains: the host, or one GPU through CUDA's seam
// (comm/nccl/cuda_api.h) and the kernels of the CUDA plugin. Nothing else of the runtime knows
// CUDA.
//
// A GPU's work is queued on the compute stream, which is the one that LibTorch's operations of the
// training thread go to. The class is for that thread (and autograd's, which works for it).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "c10/core/Device.h"
#include "comm/buffer.h"
#include "comm/nccl/cuda_api.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/cuda_table.h"
#include "runtime/device/tensor_graph.h"

namespace dtrain {

using MakeTensorGraph = std::function<absl::StatusOr<std::unique_ptr<TensorGraph>>()>;

struct CudaParts {
  comm::CudaApi* api = nullptr;                       // Outlives the device.
  const kernels::CudaKernelTable* kernels = nullptr;  // The same.
  comm::CudaStream* compute_stream = nullptr;         // Not the default stream.
  int index = 0;                                      // Number of the GPU in this process.
  at::Device tensors = at::Device(at::kCUDA, 0);      // The device of LibTorch's tensors.
  std::string description;                            // "NVIDIA H100, CUDA runtime 13.0, ...".
  MakeTensorGraph new_graph;                          // Gives an error where there can be none.
  std::function<void()> empty_cache;                  // Empties LibTorch's allocator; may be null.
};

class Device {
 public:
  // The host.
  Device() = default;
  explicit Device(CudaParts parts) : parts_(std::move(parts)), host_(false) {}
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  // The same place once more, for what may outlive this object.
  std::unique_ptr<Device> Again() const {
    return host_ ? std::make_unique<Device>() : std::make_unique<Device>(parts_);
  }

  bool is_host() const { return host_; }
  at::Device tensors() const { return host_ ? at::Device(at::kCPU) : parts_.tensors; }
  // The place of buffers that collectives use.
  comm::Device place() const {
    return host_ ? comm::Device{} : comm::Device{comm::DeviceKind::kCuda, parts_.index};
  }
  const std::string& description() const { return parts_.description; }
  // For the compute stream. The error says why LibTorch's operations cannot be captured here.
  absl::StatusOr<std::unique_ptr<TensorGraph>> NewGraph() const { return parts_.new_graph(); }

  // REQUIRES of all below, and of NewGraph: a GPU.
  comm::CudaApi& api() const { return *parts_.api; }
  const kernels::CudaKernelTable& kernels() const { return *parts_.kernels; }
  comm::CudaStream* stream() const { return parts_.compute_stream; }
  // The compute stream in the type that kernels take.
  CudaStream kernel_stream() const { return KernelStream(parts_.compute_stream); }
  static CudaStream KernelStream(comm::CudaStream* stream) {
    return reinterpret_cast<CudaStream>(stream);
  }
  // OK for kSuccess, else Internal: `what`, then CUDA's text.
  absl::Status Check(comm::CudaResult result, absl::string_view what) const;
  // Queued on the compute stream; do not wait.
  absl::Status Copy(void* to, const void* from, size_t bytes) const;
  absl::Status Zero(void* data, size_t bytes) const;
  // Blocks until the compute stream is empty: between steps, never inside one.
  absl::Status Synchronize() const;
  // Gives the memory that LibTorch's allocator keeps for later tensors back to the device, and may
  // wait for the device. REQUIRES: no graph is being captured.
  void EmptyCache() const;

 private:
  CudaParts parts_;
  bool host_ = true;
};

// take(), and again with what LibTorch's allocator keeps free given back, where there is not
// enough.
comm::CudaResult WithCacheEmptied(const Device& device, absl::FunctionRef<comm::CudaResult()> take);
// ResourceExhausted: how much of it is free, and what takes less. `result` is CUDA's.
absl::Status OutOfDeviceMemory(const Device& device, size_t bytes, absl::string_view what,
                               comm::CudaResult result);

// Memory on the device, zeroed (queued on the compute stream). Freed with this object.
class DeviceMemory {
 public:
  // ResourceExhausted names the size, what is free, and `what` it is for.
  static absl::StatusOr<std::shared_ptr<DeviceMemory>> Create(const Device& device, size_t bytes,
                                                              absl::string_view what);
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory();
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  DeviceMemory(comm::CudaApi* api, void* data, size_t bytes)
      : api_(api), data_(data), bytes_(bytes) {}
  comm::CudaApi* const api_;
  void* const data_;
  const size_t bytes_;
};

// Page-locked host memory, which copies to and from the device take without waiting.
class PinnedMemory {
 public:
  static absl::StatusOr<std::unique_ptr<PinnedMemory>> Create(const Device& device, size_t bytes);
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  ~PinnedMemory();
  void* data() const { return data_; }

 private:
  PinnedMemory(comm::CudaApi* api, void* data) : api_(api), data_(data) {}
  comm::CudaApi* const api_;
  void* const data_;
};

// A point on a stream that the host can ask about.
class DeviceEvent {
 public:
  // `timing`: SecondsSince may be asked.
  static absl::StatusOr<std::unique_ptr<DeviceEvent>> Create(const Device& device, bool timing);
  DeviceEvent(const DeviceEvent&) = delete;
  DeviceEvent& operator=(const DeviceEvent&) = delete;
  ~DeviceEvent();
  // Records the event on the compute stream.
  absl::Status Record();
  // Records it in each launch of the graph that is being captured. REQUIRES: outlives that graph.
  absl::Status RecordInGraph();
  comm::CudaEvent* handle() const { return event_; }
  // Whether what was recorded is done; errors count as done, Wait gives them.
  bool Done() const;
  // Blocks until what was recorded is done: asks again and again, so that `deadline` holds even
  // when the device hangs.
  absl::Status Wait(Deadline deadline) const;
  // Seconds from `start` to this one. REQUIRES: both are done and were made with timing.
  double SecondsSince(const DeviceEvent& start) const;

 private:
  DeviceEvent(const Device& device, comm::CudaEvent* event) : device_(device), event_(event) {}
  const Device& device_;
  comm::CudaEvent* const event_;
};

// A graph of dtrain's own kernels and copies on the compute stream, captured once. It holds no
// operation of LibTorch, which needs a TensorGraph. A launch reads the values that its addresses
// have at that time.
class DeviceGraph {
 public:
  // Runs `queue`, whose work is recorded and does not run. Its error, or CUDA's: nothing is left.
  static absl::StatusOr<std::unique_ptr<DeviceGraph>> Capture(
      const Device& device, absl::FunctionRef<absl::Status()> queue);
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;
  ~DeviceGraph();
  // Launches on the compute stream.
  absl::Status Launch() const;

 private:
  DeviceGraph(const Device& device, comm::CudaGraph* graph) : device_(device), graph_(graph) {}
  const Device& device_;
  comm::CudaGraph* const graph_;
};

}  // namespace dtrain
