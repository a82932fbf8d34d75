// Activations, forward and backward: silu, and gelu in its exact and its tanh form, alone or gating
// a second input (SwiGLU, GeGLU).
//
//   silu(x) = x / (1 + e^-x)
//   gelu(x) = x P(N(0, 1) < x), or x / (1 + e^-2u) = 0.5 x (1 + tanh u) with
//             u = sqrt(2 / pi) (x + 0.044715 x^3)       (Hendrycks & Gimpel 2016, arXiv 1606.08415)
//   gated: out = act(gate) * up                         (Shazeer 2020, arXiv 2002.05202)
// Data fp32 or bf16, math in fp32 with an exp within 2 ulp (for bf16 to 3e-6, so that one value in
// 60,000 is rounded the other way). silu(-infinity) and gelu(-infinity) are NaN, as in torch. Same
// bits on every SIMD variant, thread count, split and on CUDA, where a NaN is CUDA's own
// (cuda_table.h). Thread-safe on disjoint buffers; nothing is allocated.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/numeric/float16.h"
#include "base/threads/parallel_for.h"
#include "kernels/cuda/cuda_stream.h"

namespace dtrain::kernels {

enum class Activation : int { kSilu = 0, kGelu = 1, kGeluTanh = 2 };
constexpr int kActivations = 3;

// Each buffer is [count] of T. `y` may be `x`.
template <class T>
struct ActivationForwardArgs {
  Activation activation = Activation::kSilu;
  int64_t count = 0;
  const T* x = nullptr;
  T* y = nullptr;
};

// dx = dy * act'(x). `dx` may be `x` or `dy`.
template <class T>
struct ActivationBackwardArgs {
  Activation activation = Activation::kSilu;
  int64_t count = 0;
  const T* x = nullptr;
  const T* dy = nullptr;
  T* dx = nullptr;
};

// `out` is [rows, hidden]; a row of gate and of up begins `stride` elements after the last one. So
// buffers of their own have stride = hidden, and one buffer [rows, 2 hidden], gate first, has
// up = gate + hidden and stride = 2 hidden. With stride = hidden `out` may be `gate` or `up`.
template <class T>
struct GatedForwardArgs {
  Activation activation = Activation::kSilu;
  int64_t rows = 0;
  int64_t hidden = 0;
  int64_t stride = 0;
  const T* gate = nullptr;
  const T* up = nullptr;
  T* out = nullptr;
};

// The activation is computed again from `gate`. dgate and dup have gate's and up's layout; `dgate`
// may be `gate`, `dup` may be `up`, and with stride = hidden either may be `dout`.
template <class T>
struct GatedBackwardArgs {
  Activation activation = Activation::kSilu;
  int64_t rows = 0;
  int64_t hidden = 0;
  int64_t stride = 0;
  const T* gate = nullptr;
  const T* up = nullptr;
  const T* dout = nullptr;
  T* dgate = nullptr;
  T* dup = nullptr;
};

void ActivationForwardCpu(const ActivationForwardArgs<float>& args, ParallelFor parallel_for);
void ActivationForwardCpu(const ActivationForwardArgs<BFloat16>& args, ParallelFor parallel_for);
void ActivationBackwardCpu(const ActivationBackwardArgs<float>& args, ParallelFor parallel_for);
void ActivationBackwardCpu(const ActivationBackwardArgs<BFloat16>& args, ParallelFor parallel_for);
void GatedForwardCpu(const GatedForwardArgs<float>& args, ParallelFor parallel_for);
void GatedForwardCpu(const GatedForwardArgs<BFloat16>& args, ParallelFor parallel_for);
void GatedBackwardCpu(const GatedBackwardArgs<float>& args, ParallelFor parallel_for);
void GatedBackwardCpu(const GatedBackwardArgs<BFloat16>& args, ParallelFor parallel_for);

// The same on device pointers. Queue one kernel on `stream`, do not synchronise; Internal when the
// launch fails.
absl::Status ActivationForwardCuda(const ActivationForwardArgs<float>& args, CudaStream stream);
absl::Status ActivationForwardCuda(const ActivationForwardArgs<BFloat16>& args, CudaStream stream);
absl::Status ActivationBackwardCuda(const ActivationBackwardArgs<float>& args, CudaStream stream);
absl::Status ActivationBackwardCuda(const ActivationBackwardArgs<BFloat16>& args,
                                    CudaStream stream);
absl::Status GatedForwardCuda(const GatedForwardArgs<float>& args, CudaStream stream);
absl::Status GatedForwardCuda(const GatedForwardArgs<BFloat16>& args, CudaStream stream);
absl::Status GatedBackwardCuda(const GatedBackwardArgs<float>& args, CudaStream stream);
absl::Status GatedBackwardCuda(const GatedBackwardArgs<BFloat16>& args, CudaStream stream);

}  // namespace dtrain::kernels
