// Matrix products of a GPU's bf16 and FP8 tensors by the plugin's cublasLt
// (kernels/matmul/matmul.h): what LibTorch's cannot do, which is to add their products to an fp32
// sum, as a weight's gradient is kept. Plans are made once for each shape and kept. Thread-safe.
#pragma once

#include "ATen/core/Tensor.h"

namespace dtrain::ops {

enum class MatmulGelu { kNone, kForward, kBackward };

struct DeviceMatmulOptions {
  at::Tensor bias = {};  // [n], added to every row; of out's type.
  // kForward: out is GELU (tanh form) of the product and bias, which gelu_input keeps where it is
  // defined. kBackward: the product is a gradient of GELU's result, out that of gelu_input; there
  // is no bias.
  MatmulGelu gelu = MatmulGelu::kNone;
  at::Tensor gelu_input = {};  // [m, n], n a multiple of 8, contiguous, of out's type; not of FP8.
  bool accumulate = false;     // Adds to out, which then is fp32, in place of writing it.
  // The factors of FP8 codes, fp32 [] on the device.
  at::Tensor a_scale = {}, b_scale = {};
};

// Whether products into `out`, or of `out`'s like, may be taken at all: its kernels are a GPU's and
// have cublasLt's. DeviceMatmul may refuse all the same.
bool HasDeviceMatmul(const at::Tensor& out);

// Queues out [m, n] = a [m, k] times b [k, n], bf16 each, either of them a transpose or columns of
// something wider, or FP8, then a as it is and b a transpose; out is bf16 or fp32, and may be
// columns too. False, and nothing is queued: the tensors are the host's or of another type, one
// does not begin at a 16-byte address with rows a multiple of that apart, an option does not fit,
// or cublasLt is not there or has no way, which one warning says, and one of GELU; take ATen's
// product then. c10::Error when the launch fails.
bool DeviceMatmul(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
                  const DeviceMatmulOptions& options = {});

// Drops the plans: before another table of kernels counts. For SetGpuForTesting.
void ForgetDeviceMatmuls();

}  // namespace dtrain::ops
