// The arithmetic of reductions on host memory: element by element over ranks, in rank order.
//
// Every element is ((x0 + x1) + x2) + ... in fp32 (fp64 and integers in their own type), divided
// once by the number of ranks for kAverage and rounded once to nearest even, so the bits depend on
// nothing but the values: not on chunks, threads or the SIMD level. kMax and kMin give NaN when any
// rank has one. Pure; thread-safe.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/numeric/dtype.h"
#include "base/system/cpu_features.h"
#include "comm/buffer.h"

namespace dtrain::comm {

struct ReduceArguments {
  // One pointer for each rank, in rank order; all `outputs` get the same bytes. An output may be
  // one of the inputs exactly; other overlap is not allowed.
  absl::Span<const void* const> inputs;
  absl::Span<void* const> outputs;
  size_t count = 0;  // Elements.
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  // The divisor of kAverage if the inputs are sums over several ranks; 0: the number of inputs.
  int divisor = 0;
  // fp32 only: inputs and results are rounded as if they had travelled in that type.
  Wire wire = Wire::kSameAsBuffer;
  // When not null: the sum of squares of the results is added, in fp64, in the order of
  // SumOfSquares. Floating types only.
  double* sum_of_squares = nullptr;
};

// InvalidArgument when `op` is not defined for `dtype`.
absl::Status CheckReducible(DType dtype, ReduceOp op, Wire wire, bool sum_of_squares);

// REQUIRES: CheckReducible. `level` is for tests: production uses CpuSimdLevel().
void Reduce(const ReduceArguments& arguments, SimdLevel level = CpuSimdLevel());

// Sum of squares of `count` elements in fp64: blocks of kSquareBlock elements from the start, each
// in 16 lanes (element i in lane i % 16) folded in a fixed tree, blocks added in order.
inline constexpr size_t kSquareBlock = 4096;

}  // namespace dtrain::comm
