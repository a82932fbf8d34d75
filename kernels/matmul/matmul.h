// Matrix products on a GPU by cublasLt: planned once on the host, then launched on a stream.
//
// cublasLt is opened at run time (DynamicLibrary), so nothing links it; without it, CreateMatmul
// says so. A Matmul is for the GPU that is current when it is made, and may be launched from any
// thread whose current GPU that is, one launch of it at a time. Written against
// CUDA 13's cublasLt.h; not yet run on a GPU.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/matmul/matmul_plan.h"

namespace dtrain::kernels {

// Device pointers, 16-byte aligned; shapes as in MatmulProblem.
struct MatmulBuffers {
  const void* a = nullptr;
  const void* b = nullptr;
  void* out = nullptr;
  const void* bias = nullptr;  // [n] of out's type, for an epilogue with bias.
  void* gelu_input = nullptr;  // [m, n] of out's type, rows n apart: kept, or read.
  // FP8: what a's codes are multiplied by, in device memory at a multiple of 16 bytes.
  const float* a_scale = nullptr;
  const float* b_scale = nullptr;
};

class Matmul {
 public:
  virtual ~Matmul() = default;
  // The size of the workspace that Launch must be given.
  virtual size_t workspace_bytes() const = 0;
  // Queues the product on `stream`, does not synchronise. `workspace` is device memory that no
  // other launch uses meanwhile. Internal with cublasLt's status in words; InvalidArgument for a
  // pointer that is missing or misaligned.
  virtual absl::Status Launch(const MatmulBuffers& buffers, void* workspace,
                              CudaStream stream) const = 0;
};

// Asks cublasLt for its best algorithm with at most `workspace_bytes_max`. InvalidArgument as
// PlanMatmul; NotFound where there is no cublasLt; Internal with its status in words.
absl::StatusOr<std::unique_ptr<Matmul>> CreateMatmul(const MatmulProblem& problem,
                                                     size_t workspace_bytes_max);

}  // namespace dtrain::kernels
