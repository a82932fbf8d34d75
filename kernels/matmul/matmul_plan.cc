#include "kernels/matmul/matmul_plan.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace dtrain::kernels {
namespace {

bool IsFp8(MatmulType type) { return type == MatmulType::kE4m3 || type == MatmulType::kE5m2; }

template <class... Parts>
absl::Status Wrong(const MatmulProblem& p, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(
      "matmul [", p.m, ", ", p.k, "] x [", p.k, ", ", p.n, "] of ", MatmulTypeName(p.a), " and ",
      MatmulTypeName(p.b), " into ", MatmulTypeName(p.out), ": ", parts...));
}

absl::Status CheckFp8(const MatmulProblem& p) {
  if (p.a == MatmulType::kE5m2 && p.b == MatmulType::kE5m2) {
    return Wrong(p, "at most one factor may be e5m2; cast the other to e4m3");
  }
  if (p.transpose_a || !p.transpose_b) {
    return Wrong(p,
                 "FP8 takes a as [m, k] and b as [n, k]; write the transpose when casting "
                 "(TransposeToFp8Cuda)");
  }
  if (p.m % 16 != 0 || p.n % 16 != 0 || p.k % 16 != 0) {
    return Wrong(p, "FP8 needs multiples of 16; pad the matrices or use bf16");
  }
  return absl::OkStatus();
}

absl::Status CheckTypes(const MatmulProblem& p) {
  if (IsFp8(p.out)) {
    return Wrong(p, "the result must be fp32 or bf16; cast it afterwards");
  }
  if (IsFp8(p.a) && IsFp8(p.b)) {
    return CheckFp8(p);
  }
  if (p.a != p.b) {
    return Wrong(p, "factors must be of one type, or both FP8; cast one");
  }
  if (p.a == MatmulType::kFloat32 && p.out != MatmulType::kFloat32) {
    return Wrong(p, "fp32 factors give an fp32 result; cast them or it");
  }
  return absl::OkStatus();
}

bool IsGelu(MatmulEpilogue epilogue) {
  return epilogue == MatmulEpilogue::kGelu || epilogue == MatmulEpilogue::kGeluBias;
}

absl::Status CheckEpilogue(const MatmulProblem& p, bool with_gelu_input) {
  if (p.accumulate && p.epilogue != MatmulEpilogue::kNone) {
    return Wrong(p, "an epilogue would apply to the sum; accumulate without one");
  }
  if (p.keep_gelu_input && !IsGelu(p.epilogue)) {
    return Wrong(p, "only an epilogue with GELU has an input of it to keep");
  }
  if (with_gelu_input && (IsFp8(p.a) || p.n % 8 != 0)) {
    return Wrong(p,
                 "GELU's input is kept and read in rows of a multiple of 8, of bf16 and fp32 "
                 "factors; take GELU apart from the product");
  }
  return absl::OkStatus();
}

// A row-major [rows, columns] is a column-major [columns, rows].
MatmulOperand Stored(int64_t rows, int64_t columns, int64_t stride, bool transposed,
                     MatmulType type) {
  return {columns, rows, stride > 0 ? stride : columns, transposed, type};
}

MatmulOperand Factor(int64_t rows, int64_t columns, int64_t stride, bool transposed,
                     MatmulType type) {
  return transposed ? Stored(columns, rows, stride, true, type)
                    : Stored(rows, columns, stride, false, type);
}

absl::Status CheckStride(const MatmulProblem& p, absl::string_view of, int64_t stride,
                         const MatmulOperand& operand) {
  return stride == 0 || stride >= operand.rows
             ? absl::OkStatus()
             : Wrong(p, of, "'s rows are ", stride, " elements apart and have ", operand.rows,
                     "; allowed: 0 or at least that");
}

}  // namespace

absl::string_view MatmulTypeName(MatmulType type) {
  switch (type) {
    case MatmulType::kFloat32:
      return "fp32";
    case MatmulType::kBFloat16:
      return "bf16";
    case MatmulType::kE4m3:
      return "e4m3";
    case MatmulType::kE5m2:
      return "e5m2";
  }
  return "unknown";
}

absl::StatusOr<MatmulPlan> PlanMatmul(const MatmulProblem& p) {
  if (p.m < 1 || p.n < 1 || p.k < 1) {
    return Wrong(p, "every size must be at least 1");
  }
  if (absl::Status types = CheckTypes(p); !types.ok()) {
    return types;
  }
  if (p.accumulate && p.out != MatmulType::kFloat32) {
    return Wrong(p, "accumulation needs an fp32 result: small terms would be lost in bf16");
  }
  const bool with_gelu_input = p.keep_gelu_input || p.epilogue == MatmulEpilogue::kGeluBackward;
  if (absl::Status epilogue = CheckEpilogue(p, with_gelu_input); !epilogue.ok()) {
    return epilogue;
  }
  const MatmulPlan plan{.first = Factor(p.k, p.n, p.b_stride, p.transpose_b, p.b),
                        .second = Factor(p.m, p.k, p.a_stride, p.transpose_a, p.a),
                        .out = Stored(p.m, p.n, p.out_stride, false, p.out),
                        .with_gelu_input = with_gelu_input};
  absl::Status strides = CheckStride(p, "b", p.b_stride, plan.first);
  strides.Update(CheckStride(p, "a", p.a_stride, plan.second));
  strides.Update(CheckStride(p, "out", p.out_stride, plan.out));
  return strides.ok() ? absl::StatusOr<MatmulPlan>(plan) : strides;
}

}  // namespace dtrain::kernels
