#include "bench/kernels/cuda_products.h"

#include <cstdio>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status.h"

namespace dtrain::bench {
namespace {

using kernels::Matmul;
using kernels::MatmulEpilogue;
using kernels::MatmulProblem;
using kernels::MatmulType;

constexpr int64_t kTokens = 2 * kHidden;
constexpr int64_t kInner = 4 * kHidden;
// A stream holds the largest operand: the weight's gradient in fp32, or kTokens x kInner in bf16.
constexpr int64_t kElementsMin = kHidden * kInner;
static_assert(kTokens * kInner * 2 <= kElementsMin * 4);
constexpr size_t kWorkspaceMax = size_t{32} << 20;
constexpr int kWarmUp = 3;

// A product on the arena's streams; all use one workspace, one after the other.
struct Product {
  std::string name;
  double flops = 0;
  std::unique_ptr<Matmul> matmul;
  kernels::MatmulBuffers buffers;
  void* workspace = nullptr;

  double FlopsPerSecond(Timer& timer, int launches) const {
    return flops / timer.Seconds(launches, [&](cudaStream_t stream) {
      DT_CHECK_OK(matmul->Launch(buffers, workspace, stream));
    });
  }
};

absl::StatusOr<Product> MakeProduct(const ProductCase& one, const Arena& a, void* workspace,
                                    Timer& timer) {
  const MatmulProblem& p = one.problem;
  Product product{
      .name = one.name,
      .flops = 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k),
      .matmul = nullptr,
      .buffers = {.a = a.streams[0],
                  .b = a.streams[1],
                  .out = a.streams[2],
                  .bias = a.streams[4],
                  .gelu_input = a.streams[3]},
      .workspace = workspace};
  DT_ASSIGN_OR_RETURN(product.matmul, kernels::CreateMatmul(p, kWorkspaceMax));
  product.FlopsPerSecond(timer, kWarmUp);
  return product;
}

// The fastest of plain products in several sizes and ways to store the factors.
absl::StatusOr<Product> BestProduct(const Arena& arena, void* workspace, int launches,
                                    Timer& timer) {
  Product best;
  double most = 0;
  for (const int64_t size : {kHidden, 2 * kHidden}) {
    for (const bool transposed : {false, true}) {
      DT_ASSIGN_OR_RETURN(
          Product product,
          MakeProduct({absl::StrCat(size, transposed ? ", b transposed" : ""),
                       {.m = size, .n = size, .k = size, .transpose_b = transposed}},
                      arena, workspace, timer));
      const double rate = product.FlopsPerSecond(timer, launches);
      if (rate > most) {
        most = rate;
        best = std::move(product);
      }
    }
  }
  return best;
}

struct Rates {
  std::vector<double> best, product, fraction;
};

Rates MeasureRounds(const Product& product, const Product& best, const ProductOptions& options,
                    Timer& timer) {
  Rates rates;
  for (int round = 0; round < options.rounds; ++round) {
    const double before = best.FlopsPerSecond(timer, options.launches);
    const double mine = product.FlopsPerSecond(timer, options.launches);
    const double after = best.FlopsPerSecond(timer, options.launches);
    rates.best.push_back((before + after) / 2);
    rates.product.push_back(mine);
    rates.fraction.push_back(2 * mine / (before + after));
  }
  return rates;
}

Json RowOf(const Product& product, const Rates& rates) {
  return {{"name", product.name},
          {"us", product.flops / Median(rates.product) * 1e6},
          {"tflops", Median(rates.product) * 1e-12},
          {"best_tflops", Median(rates.best) * 1e-12},
          {"best_fraction", Median(rates.fraction)}};
}

}  // namespace

std::vector<ProductCase> ProductCases() {
  // x [tokens, hidden] times a weight [inner, hidden]: what an MLP's first layer does.
  const MatmulProblem up{.m = kTokens, .n = kInner, .k = kHidden, .transpose_b = true};
  // The gradient dy [tokens, inner] times the weight as it is.
  const MatmulProblem down{.m = kTokens, .n = kHidden, .k = kInner};
  std::vector<ProductCase> cases = {{"product_bf16", up}, {"product_input_gradient_bf16", down}};
  MatmulProblem bias = up;
  bias.epilogue = MatmulEpilogue::kBias;
  cases.push_back({"product_bias_bf16", bias});
  MatmulProblem gelu = up;
  gelu.epilogue = MatmulEpilogue::kGeluBias;
  gelu.keep_gelu_input = true;
  cases.push_back({"product_bias_gelu_bf16", gelu});
  // dy [tokens, hidden] times the second layer's weight [hidden, inner], then back through GELU.
  MatmulProblem gelu_gradient{.m = kTokens, .n = kInner, .k = kHidden};
  gelu_gradient.epilogue = MatmulEpilogue::kGeluBackward;
  cases.push_back({"product_gelu_gradient_bf16", gelu_gradient});
  // dy^T x, added to fp32.
  cases.push_back({"product_weight_gradient_bf16",
                   {.m = kInner,
                    .n = kHidden,
                    .k = kTokens,
                    .transpose_a = true,
                    .out = MatmulType::kFloat32,
                    .accumulate = true}});
  return cases;
}

absl::StatusOr<Json> MeasureProducts(const Arena& arena, const ProductOptions& options,
                                     Timer& timer) {
  if (arena.elements < kElementsMin) {
    return absl::InvalidArgumentError(absl::StrCat("products need streams of ", kElementsMin,
                                                   " elements and these have ", arena.elements,
                                                   ": --elements ", kElementsMin));
  }
  void* workspace = nullptr;
  Check(cudaMalloc(&workspace, kWorkspaceMax), "cudaMalloc of the products' workspace");
  FillStreams(arena);
  DT_ASSIGN_OR_RETURN(const Product best, BestProduct(arena, workspace, options.launches, timer));
  Json rows = Json::array();
  absl::PrintF("%-28s %9s %9s %9s %7s\n", "product", "us", "TFLOP/s", "best", "%");
  for (const ProductCase& one : ProductCases()) {
    if (!absl::StrContains(one.name, options.filter)) {
      continue;
    }
    DT_ASSIGN_OR_RETURN(const Product product, MakeProduct(one, arena, workspace, timer));
    const Json row = RowOf(product, MeasureRounds(product, best, options, timer));
    absl::PrintF("%-28s %9.1f %9.1f %9.1f %7.1f\n", one.name, row["us"].get<double>(),
                 row["tflops"].get<double>(), row["best_tflops"].get<double>(),
                 100 * row["best_fraction"].get<double>());
    std::fflush(stdout);
    rows.push_back(row);
  }
  return Json{{"best", best.name}, {"tokens", kTokens}, {"results", rows}};
}

}  // namespace dtrain::bench
