// The numbers that `dtrain bench comm` sends and expects: small integers, exact in every type and
// in every sum, in a pattern whose period is prime, so that a chunk at a wrong place is found.
// Pure.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "base/numeric/dtype.h"

namespace dtrain::comm {

// The value of rank `rank` at `index`: in [0, 64), for 16-bit types in [0, 4).
double BenchValue(DType dtype, int ranks, int rank, size_t index);

// Elements at a time: a whole number of periods, about 1 MiB of the largest type.
inline constexpr size_t kBenchTile = size_t{61} * 2048;

// The kBenchTile elements of `dtype` whose element i is `value(first + i)`. `value` has the
// pattern's period.
std::string MakeTile(DType dtype, size_t first, const std::function<double(size_t)>& value);

// Elements of `got` [count] that differ from `want` [count] by more than `tolerance` of it.
size_t CountWrong(DType dtype, const void* got, const void* want, size_t count, double tolerance);

// How far an average may be off: it is rounded once or twice, and multiplied by 1/n or divided.
double AverageTolerance(DType dtype);

// nccl-tests' names: "float", "half", "bfloat16", "double", "int32", "int64".
const char* BenchTypeName(DType dtype);

}  // namespace dtrain::comm
