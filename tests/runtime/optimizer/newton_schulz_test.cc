#include "runtime/optimizer/newton_schulz.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "ATen/ATen.h"

namespace dtrain::newton_schulz_test {
namespace {

TEST(NewtonSchulz, MakesSingularValuesNearlyOneAndScalesTallMatrices) {
  at::manual_seed(3);
  for (const auto& [rows, columns] : {std::pair(8, 8), std::pair(20, 7), std::pair(7, 20)}) {
    const at::Tensor matrix = at::randn({rows, columns}) * 5;
    const double factor = rows > columns ? std::sqrt(static_cast<double>(rows) / columns) : 1;
    const at::Tensor result = NewtonSchulz(matrix) / factor;
    const at::Tensor values = at::linalg_svdvals(result);
    EXPECT_GT(values.min().item<double>(), 0.3) << rows << " x " << columns;
    EXPECT_LT(values.max().item<double>(), 1.3);
    // The same singular vectors: the result's product with the matrix is symmetric and positive.
    const at::Tensor product = result.matmul(matrix.t());
    EXPECT_TRUE(at::allclose(product, product.t(), 1e-3, 1e-2));
  }
  const at::Tensor kernel = at::randn({4, 3, 2, 2});
  const at::Tensor flat = NewtonSchulz(kernel.view({4, 12}));
  EXPECT_TRUE(at::allclose(NewtonSchulz(kernel).view({4, 12}), flat, 1e-5, 1e-6));
}

}  // namespace
}  // namespace dtrain::newton_schulz_test
