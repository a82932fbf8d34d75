// SwiGLU: out = silu(gate) * up, with silu(x) = x / (1 + e^-x) (Shazeer 2020, arXiv 2002.05202).
//
// Data fp32 or bf16, math in fp32 with an exp within 2 ulp. silu(-infinity) is NaN, as in torch.
// Same bits on every SIMD variant, thread count, split and on CUDA. Thread-safe on disjoint
// buffers; nothing is allocated.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/float16.h"
#include "base/parallel_for.h"
#include "kernels/cuda_stream.h"

namespace dtrain::kernels {

// Each buffer is [count] of T. `out` may be `gate` or `up`.
template <class T>
struct SwiGluForwardArgs {
  int64_t count = 0;
  const T* gate = nullptr;
  const T* up = nullptr;
  T* out = nullptr;
};

// The sigmoid is computed again from `gate`. `dgate` may be `gate`, `dup` may be `up`, and either
// may be `dout`.
template <class T>
struct SwiGluBackwardArgs {
  int64_t count = 0;
  const T* gate = nullptr;
  const T* up = nullptr;
  const T* dout = nullptr;
  T* dgate = nullptr;
  T* dup = nullptr;
};

void SwiGluForwardCpu(const SwiGluForwardArgs<float>& args, ParallelFor parallel_for);
void SwiGluForwardCpu(const SwiGluForwardArgs<BFloat16>& args, ParallelFor parallel_for);
void SwiGluBackwardCpu(const SwiGluBackwardArgs<float>& args, ParallelFor parallel_for);
void SwiGluBackwardCpu(const SwiGluBackwardArgs<BFloat16>& args, ParallelFor parallel_for);

// The same on device pointers. Queue one kernel on `stream`, do not synchronise; Internal when the
// launch fails.
absl::Status SwiGluForwardCuda(const SwiGluForwardArgs<float>& args, CudaStream stream);
absl::Status SwiGluForwardCuda(const SwiGluForwardArgs<BFloat16>& args, CudaStream stream);
absl::Status SwiGluBackwardCuda(const SwiGluBackwardArgs<float>& args, CudaStream stream);
absl::Status SwiGluBackwardCuda(const SwiGluBackwardArgs<BFloat16>& args, CudaStream stream);

}  // namespace dtrain::kernels
