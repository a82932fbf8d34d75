#include "comm/collectives/reduce.h"

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "comm/collectives/reduce_loops.h"

namespace dtrain::comm {
namespace {

template <typename T>
bool IsNan(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::isnan(value);
  } else {
    return false;
  }
}

template <typename T>
T Combine(T a, T b, ReduceOp op) {
  switch (op) {
    case ReduceOp::kMax:
      return a > b || IsNan(a) ? a : b;
    case ReduceOp::kMin:
      return a < b || IsNan(a) ? a : b;
    default:
      if constexpr (std::is_integral_v<T>) {  // Wraps on overflow, as the hardware does.
        return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) +
                              static_cast<std::make_unsigned_t<T>>(b));
      } else {
        return a + b;
      }
  }
}

size_t Divisor(const ReduceArguments& a) {
  return a.divisor != 0 ? static_cast<size_t>(a.divisor) : a.inputs.size();
}

template <typename T>
void ReduceDirect(const ReduceArguments& a) {
  const size_t divisor = Divisor(a);
  double squares = 0;
  for (size_t i = 0; i < a.count; ++i) {
    T value = static_cast<const T*>(a.inputs[0])[i];
    for (size_t r = 1; r < a.inputs.size(); ++r) {
      value = Combine(value, static_cast<const T*>(a.inputs[r])[i], a.op);
    }
    if (a.op == ReduceOp::kAverage) {
      value = static_cast<T>(value / static_cast<T>(divisor));
    }
    squares += static_cast<double>(value) * static_cast<double>(value);
    for (void* output : a.outputs) {
      static_cast<T*>(output)[i] = value;
    }
  }
  if (a.sum_of_squares != nullptr) {
    *a.sum_of_squares += squares;
  }
}

ReduceLoop FindLoop(SimdLevel level, LaneFormat format, ReduceOp op) {
  ReduceLoop loop = nullptr;
  if (level == SimdLevel::kAvx512) {
    loop = FindLoopAvx512(format, op);
  }
  if (loop == nullptr && level >= SimdLevel::kAvx2) {
    loop = FindLoopAvx2(format, op);
  }
  return loop != nullptr ? loop : FindLoopScalar(format, op);
}

}  // namespace

absl::Status CheckReducible(DType dtype, ReduceOp op, Wire wire, bool sum_of_squares) {
  const bool floating = dtype == DType::kFloat32 || dtype == DType::kBFloat16 ||
                        dtype == DType::kFloat16 || dtype == DType::kFloat64;
  if (dtype == DType::kBool) {
    return absl::InvalidArgumentError(
        "a reduction of bool is not defined; allowed: fp32, bf16, fp16, fp64, int32, int64, uint8: "
        "reduce uint8 with max or min instead");
  }
  if (!floating && (op == ReduceOp::kAverage || sum_of_squares)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s of %s is not defined; allowed: fp32, bf16, fp16, fp64: use a sum",
        op == ReduceOp::kAverage ? "an average" : "a sum of squares", DTypeName(dtype)));
  }
  const bool itself = (wire == Wire::kBFloat16 && dtype == DType::kBFloat16) ||
                      (wire == Wire::kFloat16 && dtype == DType::kFloat16);
  if (wire != Wire::kSameAsBuffer && dtype != DType::kFloat32 && !itself) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s on the wire is for fp32 buffers, got %s: leave it off",
                        wire == Wire::kBFloat16 ? "bf16" : "fp16", DTypeName(dtype)));
  }
  return absl::OkStatus();
}

void Reduce(const ReduceArguments& a, SimdLevel level) {
  DT_CHECK(!a.inputs.empty());
  LaneFormat format = LaneFormat::kFloat32;
  switch (a.dtype) {
    case DType::kFloat32:
      format = a.wire == Wire::kBFloat16  ? LaneFormat::kFloat32AsBFloat16
               : a.wire == Wire::kFloat16 ? LaneFormat::kFloat32AsFloat16
                                          : LaneFormat::kFloat32;
      break;
    case DType::kBFloat16:
      format = LaneFormat::kBFloat16;
      break;
    case DType::kFloat16:
      format = LaneFormat::kFloat16;
      break;
    case DType::kFloat64:
      return ReduceDirect<double>(a);
    case DType::kInt32:
      return ReduceDirect<int32_t>(a);
    case DType::kInt64:
      return ReduceDirect<int64_t>(a);
    case DType::kUInt8:
      return ReduceDirect<uint8_t>(a);
    case DType::kBool:
      DT_CHECK(false) << "bool passed CheckReducible";
  }
  FindLoop(level, format, a.op)(LoopArguments{
      .inputs = a.inputs.data(),
      .input_count = a.inputs.size(),
      .outputs = a.outputs.data(),
      .output_count = a.outputs.size(),
      .count = a.count,
      .divisor = static_cast<float>(Divisor(a)),
      .sum_of_squares = a.sum_of_squares,
  });
}

}  // namespace dtrain::comm
