// Takes the place of matmul.cc where the build has no cublasLt.h.
#include "kernels/matmul/matmul.h"

namespace dtrain::kernels {

absl::StatusOr<std::unique_ptr<Matmul>> CreateMatmul(const MatmulProblem& /*problem*/,
                                                     size_t /*workspace_bytes_max*/) {
  return absl::UnimplementedError(
      "this build has no cublasLt.h; install CUDA's cuBLAS headers and build again");
}

}  // namespace dtrain::kernels
