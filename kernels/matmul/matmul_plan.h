// Checks a matrix product and translates it into cublasLt's column-major terms. Pure.
//
//   out [m, n] = op(a) op(b) (+ out)      all row-major; op(a) is [m, k], op(b) is [k, n]
// A row-major matrix is the transpose of a column-major one, so cublasLt is asked for out^T =
// op(b)^T op(a)^T, whose first factor is b.
#pragma once

#include <compare>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtrain::kernels {

enum class MatmulType : uint8_t { kFloat32, kBFloat16, kE4m3, kE5m2 };
absl::string_view MatmulTypeName(MatmulType type);  // "fp32", "bf16", "e4m3", "e5m2".

// Applied to the product before it is written: + bias [n], then GELU (tanh form); or the product is
// a gradient dL/dGELU(x), and GELU's derivative at x makes it dL/dx.
enum class MatmulEpilogue : uint8_t { kNone, kBias, kGelu, kGeluBias, kGeluBackward };

struct MatmulProblem {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  bool transpose_a = false;  // a is stored [k, m].
  bool transpose_b = false;  // b is stored [n, k], as the weight of a linear layer.
  MatmulType a = MatmulType::kBFloat16;
  MatmulType b = MatmulType::kBFloat16;
  MatmulType out = MatmulType::kBFloat16;
  MatmulEpilogue epilogue = MatmulEpilogue::kNone;
  bool keep_gelu_input = false;  // GELU's x is written too, for the backward pass.
  bool accumulate = false;  // beta = 1: adds to out, as a weight's gradient to the flat buffer.
  // Elements from a stored row to the next; 0: as many as a row has.
  int64_t a_stride = 0;
  int64_t b_stride = 0;
  int64_t out_stride = 0;

  friend auto operator<=>(const MatmulProblem&, const MatmulProblem&) = default;
};

// A stored matrix as cublasLt describes it, column-major.
struct MatmulOperand {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;  // From column to column: the leading dimension.
  bool transposed = false;
  MatmulType type = MatmulType::kBFloat16;
};

struct MatmulPlan {
  MatmulOperand first;   // b.
  MatmulOperand second;  // a.
  MatmulOperand out;
  bool with_gelu_input = false;  // It is written or read.
};

// InvalidArgument naming the value, what is allowed and what to do:
//   m, n, k at least 1; a and b both fp32 (then out too), both bf16, or both FP8, at most one e5m2;
//   out fp32 or bf16; FP8 with a as it is, b stored [n, k], and m, n, k multiples of 16;
//   accumulation into fp32 and without epilogue; GELU's input with kGelu, kGeluBias (kept) and
//   kGeluBackward (read), n then a multiple of 8 and factors not FP8; strides 0 or at least a
//   stored row.
absl::StatusOr<MatmulPlan> PlanMatmul(const MatmulProblem& problem);

}  // namespace dtrain::kernels
