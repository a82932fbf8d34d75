#include "kernels/matmul/matmul_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace dtrain::kernels::matmul_plan_test {
namespace {

using ::testing::HasSubstr;

// Computes a product as cublasLt's documentation defines it: column-major, each factor transposed
// if its operand says so.
std::vector<int64_t> ColumnMajorProduct(const MatmulPlan& plan, const std::vector<int64_t>& first,
                                        const std::vector<int64_t>& second) {
  const auto at = [](const MatmulOperand& x, const std::vector<int64_t>& data, int64_t row,
                     int64_t column) {
    if (x.transposed) {
      std::swap(row, column);
    }
    EXPECT_TRUE(row < x.rows && column < x.columns);
    return data[static_cast<size_t>(column * x.stride + row)];
  };
  const int64_t inner = plan.first.transposed ? plan.first.rows : plan.first.columns;
  std::vector<int64_t> out(static_cast<size_t>(plan.out.rows * plan.out.columns));
  for (int64_t column = 0; column < plan.out.columns; ++column) {
    for (int64_t row = 0; row < plan.out.rows; ++row) {
      int64_t sum = 0;
      for (int64_t i = 0; i < inner; ++i) {
        sum += at(plan.first, first, row, i) * at(plan.second, second, i, column);
      }
      out[static_cast<size_t>(column * plan.out.rows + row)] = sum;
    }
  }
  return out;
}

TEST(MatmulPlan, ColumnMajorTermsGiveTheRowMajorProductForEveryTransposeAndShape) {
  for (int64_t m = 1; m <= 5; ++m) {
    for (int64_t n = 1; n <= 5; ++n) {
      for (int64_t k = 1; k <= 5; ++k) {
        for (const bool ta : {false, true}) {
          for (const bool tb : {false, true}) {
            const auto plan =
                PlanMatmul({.m = m, .n = n, .k = k, .transpose_a = ta, .transpose_b = tb});
            ASSERT_TRUE(plan.ok()) << plan.status();
            std::vector<int64_t> a(static_cast<size_t>(m * k));
            std::vector<int64_t> b(static_cast<size_t>(k * n));
            for (size_t i = 0; i < a.size(); ++i) {
              a[i] = static_cast<int64_t>(7 * i * i + 3) % 31;
            }
            for (size_t i = 0; i < b.size(); ++i) {
              b[i] = static_cast<int64_t>(5 * i * i + 11) % 37;
            }
            std::vector<int64_t> expected;
            for (int64_t row = 0; row < m; ++row) {
              for (int64_t column = 0; column < n; ++column) {
                int64_t sum = 0;
                for (int64_t i = 0; i < k; ++i) {
                  sum += a[static_cast<size_t>(ta ? i * m + row : row * k + i)] *
                         b[static_cast<size_t>(tb ? column * k + i : i * n + column)];
                }
                expected.push_back(sum);
              }
            }
            ASSERT_EQ(ColumnMajorProduct(*plan, b, a), expected)
                << m << ' ' << n << ' ' << k << ' ' << ta << tb;
          }
        }
      }
    }
  }
}

TEST(MatmulPlan, RowsMayLieApart) {
  const auto plan = PlanMatmul(
      {.m = 2, .n = 3, .k = 2, .transpose_b = true, .a_stride = 5, .b_stride = 4, .out_stride = 7});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->out.stride, 7);
  // a: rows 1 2 and 3 4, five apart; b: rows 1 0, 0 1 and 1 1, four apart.
  EXPECT_EQ(ColumnMajorProduct(*plan, {1, 0, 9, 9, 0, 1, 9, 9, 1, 1}, {1, 2, 9, 9, 9, 3, 4}),
            (std::vector<int64_t>{1, 2, 3, 3, 4, 7}));
}

TEST(MatmulPlan, TakesWeightGradientsIntoFp32AndFp8) {
  EXPECT_TRUE(PlanMatmul({.m = 3,
                          .n = 5,
                          .k = 7,
                          .transpose_a = true,
                          .out = MatmulType::kFloat32,
                          .accumulate = true})
                  .ok());
  const auto fp8 = PlanMatmul({.m = 32,
                               .n = 48,
                               .k = 64,
                               .transpose_b = true,
                               .a = MatmulType::kE5m2,
                               .b = MatmulType::kE4m3});
  ASSERT_TRUE(fp8.ok()) << fp8.status();
  EXPECT_TRUE(fp8->first.transposed &&
              !fp8->second.transposed);  // FP8 tensor cores take only this.
  EXPECT_EQ(fp8->first.type, MatmulType::kE4m3);
  EXPECT_EQ(fp8->second.type, MatmulType::kE5m2);
}

TEST(MatmulPlan, SaysWhatCannotBeMultiplied) {
  using T = MatmulType;
  const MatmulProblem fp8{
      .m = 16, .n = 16, .k = 16, .transpose_b = true, .a = T::kE4m3, .b = T::kE4m3};
  const auto with = [](MatmulProblem p, auto change) {
    change(p);
    return std::string(PlanMatmul(p).status().message());
  };
  EXPECT_THAT(with({.m = 2, .n = 0, .k = 3}, [](auto&) {}), HasSubstr("must be at least 1"));
  EXPECT_THAT(with(fp8, [](auto& p) { p.k = 24; }), HasSubstr("multiples of 16"));
  EXPECT_THAT(with(fp8, [](auto& p) { p.a = p.b = T::kE5m2; }), HasSubstr("at most one"));
  EXPECT_THAT(with(fp8, [](auto& p) { p.transpose_b = false; }), HasSubstr("b as [n, k]"));
  EXPECT_THAT(with(fp8, [](auto& p) { p.out = T::kE4m3; }), HasSubstr("fp32 or bf16"));
  EXPECT_THAT(with(fp8, [](auto& p) { p.a = T::kBFloat16; }), HasSubstr("of one type"));
  EXPECT_THAT(with({.m = 2, .n = 2, .k = 2, .a = T::kFloat32, .b = T::kFloat32}, [](auto&) {}),
              HasSubstr("fp32 factors give an fp32 result"));
  EXPECT_THAT(with({.m = 2, .n = 2, .k = 2, .accumulate = true}, [](auto&) {}),
              HasSubstr("[2, 2] x [2, 2] of bf16 and bf16 into bf16: accumulation needs an fp32"));
  EXPECT_THAT(with({.m = 2,
                    .n = 2,
                    .k = 2,
                    .out = T::kFloat32,
                    .epilogue = MatmulEpilogue::kBias,
                    .accumulate = true},
                   [](auto&) {}),
              HasSubstr("without one"));
  const MatmulProblem kept{
      .m = 2, .n = 8, .k = 2, .epilogue = MatmulEpilogue::kGelu, .keep_gelu_input = true};
  EXPECT_TRUE(PlanMatmul(kept)->with_gelu_input);
  EXPECT_THAT(with(kept, [](auto& p) { p.epilogue = MatmulEpilogue::kBias; }),
              HasSubstr("only an epilogue with GELU"));
  EXPECT_THAT(with(kept, [](auto& p) { p.n = 12; }), HasSubstr("rows of a multiple of 8"));
  EXPECT_THAT(with(fp8, [](auto& p) { p.epilogue = MatmulEpilogue::kGeluBackward; }),
              HasSubstr("GELU apart from the product"));
  EXPECT_THAT(with({.m = 2, .n = 2, .k = 3, .a_stride = 2}, [](auto&) {}),
              HasSubstr("a's rows are 2 elements apart and have 3"));
}

}  // namespace
}  // namespace dtrain::kernels::matmul_plan_test
