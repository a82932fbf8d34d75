// Matrix products of cublasLt as the layers of an MLP ask for them, beside the best plain product
// of the same GPU in the same run. Single-threaded.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json.h"
#include "bench/kernels/cuda_case.h"
#include "bench/kernels/cuda_timer.h"
#include "kernels/matmul/matmul.h"

namespace dtrain::bench {

// A product over 8,192 tokens, between kHidden and four times as many columns. Its twins are in
// bench/twins/kernel_twins/products.py.
struct ProductCase {
  std::string name;
  kernels::MatmulProblem problem;
};
std::vector<ProductCase> ProductCases();

struct ProductOptions {
  std::string filter;  // Only cases whose name contains this.
  int rounds = 9;
  int launches = 10;
};

// Prints a line a case and gives {"best": its shape, "tokens", "results": [{"name", "us", "tflops",
// "best_tflops", "best_fraction"}]}: a round is launches of the best plain product, of the case,
// and of the best again. Overwrites the arena's streams. NotFound or Unimplemented where there is
// no cublasLt; InvalidArgument where the arena is too small, with what to ask for.
absl::StatusOr<Json> MeasureProducts(const Arena& arena, const ProductOptions& options,
                                     Timer& timer);

}  // namespace dtrain::bench
