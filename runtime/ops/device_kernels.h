// Where a fused operation's kernels run: in LibTorch's pool for tensors of the host; for a GPU's,
// the CUDA plugin's on the stream that is LibTorch's current one there. The plugin is opened when
// the first such tensor comes. Thread-safe.
#pragma once

#include <type_traits>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "base/numeric/float16.h"
#include "base/threads/parallel_for.h"
#include "c10/core/DeviceGuard.h"
#include "comm/nccl/cuda_api.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/cuda_table.h"
#include "runtime/model/torch_pool.h"

namespace dtrain::ops {

// Whether there are kernels for tensors of `device`: the host, and GPUs where the plugin opens and
// is built for them. Where not, a warning says why, once, and operations fall back to ATen.
bool HasKernels(const at::Device& device);

// Whether `tensor`'s kernels are a GPU's.
bool OnGpu(const at::Tensor& tensor);

// Whether what the calling thread launches for `tensor`, which is a GPU's, goes to `stream`; in
// tests also true of a host's that no kernels were set for.
bool LaunchesOn(const at::Tensor& tensor, CudaStream stream);

// Whether launches on `stream` are recorded into a graph and do not run now; also true where CUDA
// does not say. REQUIRES: `stream` is a GpuLaunch's.
bool IsCaptured(CudaStream stream);

// The kernels and the stream of a launch. While it lives, the GPU that holds `tensor` is the
// thread's current one. REQUIRES: OnGpu(tensor), and HasKernels of its device.
class GpuLaunch {
 public:
  explicit GpuLaunch(const at::Tensor& tensor);
  const kernels::CudaKernelTable& kernels() const { return *kernels_; }
  CudaStream stream() const { return stream_; }

 private:
  c10::OptionalDeviceGuard guard_;
  const kernels::CudaKernelTable* kernels_ = nullptr;
  CudaStream stream_ = nullptr;
};

// Throws c10::Error with the status's message unless it is OK.
void ThrowUnlessOk(const absl::Status& status);

// An entry of the table.
template <class Args>
using GpuKernel = absl::Status (*kernels::CudaKernelTable::*)(const Args&, CudaStream);

// The entry for T, of the two that an operation has.
template <class T, class Fp32, class Bf16>
constexpr auto OfType(Fp32 fp32, [[maybe_unused]] Bf16 bf16) {
  if constexpr (std::is_same_v<T, float>) {
    return fp32;
  } else {
    return bf16;
  }
}

// Runs a kernel where `on` is. On a GPU it is queued; c10::Error when that fails.
template <class Args>
void Launch(const at::Tensor& on, const Args& args, void (*host)(const Args&, ParallelFor),
            GpuKernel<Args> gpu) {
  if (!OnGpu(on)) {
    host(args, TorchParallelFor);
    return;
  }
  const GpuLaunch launch(on);
  ThrowUnlessOk((launch.kernels().*gpu)(args, launch.stream()));
}

// From now on tensors of the host count as a GPU's, with these kernels; null: no more. While no
// operation runs. `api` is asked whether its GPU 0 can run them and whether `stream` is captured;
// without it the GPU can, and the stream is not.
void SetGpuForTesting(const kernels::CudaKernelTable* kernels, CudaStream stream,
                      comm::CudaApi* api = nullptr);

}  // namespace dtrain::ops
