// The loops of reduce.cc, one table for each SIMD level. Pure. Internal to comm/collectives.
#pragma once

#include <cstddef>

#include "comm/buffer.h"

namespace dtrain::comm {

struct LoopArguments {
  const void* const* inputs;
  size_t input_count;
  void* const* outputs;
  size_t output_count;
  size_t count;
  float divisor;           // kAverage only.
  double* sum_of_squares;  // Null: not wanted.
};

using ReduceLoop = void (*)(const LoopArguments&);

// How 16-lane elements are stored.
enum class LaneFormat { kFloat32, kBFloat16, kFloat16, kFloat32AsBFloat16, kFloat32AsFloat16 };

constexpr bool StoredAsFloat32(LaneFormat format) {
  return format != LaneFormat::kBFloat16 && format != LaneFormat::kFloat16;
}
constexpr bool RoundedToFloat16(LaneFormat format) {
  return format == LaneFormat::kFloat16 || format == LaneFormat::kFloat32AsFloat16;
}

// Null when the build lacks the level.
ReduceLoop FindLoopScalar(LaneFormat format, ReduceOp op);
ReduceLoop FindLoopAvx2(LaneFormat format, ReduceOp op);
ReduceLoop FindLoopAvx512(LaneFormat format, ReduceOp op);

}  // namespace dtrain::comm
