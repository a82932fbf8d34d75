#include "comm/tools/bench_elements.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/numeric/element.h"

namespace dtrain::comm {
namespace {

constexpr size_t kPeriod = 61;
static_assert(kBenchTile % kPeriod == 0);

}  // namespace

double BenchValue(DType dtype, int ranks, int rank, size_t index) {
  // Sums stay exact in the 8 bits of bf16, which hold integers up to 256.
  const size_t range = DTypeBytes(dtype) != 2 ? 64 : ranks <= 64 ? 4 : 2;
  const size_t place = index % kPeriod;
  return static_cast<double>((place * 7 + place / 5 + static_cast<size_t>(rank) * 3) % range);
}

std::string MakeTile(DType dtype, size_t first, const std::function<double(size_t)>& value) {
  const size_t width = DTypeBytes(dtype);
  std::string tile(kBenchTile * width, '\0');
  for (size_t i = 0; i < kPeriod; ++i) {
    PutNumber(dtype, value(first + i), tile.data() + i * width);
  }
  const size_t period = kPeriod * width;
  for (size_t at = period; at < tile.size(); at += period) {
    std::memcpy(tile.data() + at, tile.data(), period);
  }
  return tile;
}

size_t CountWrong(DType dtype, const void* got, const void* want, size_t count, double tolerance) {
  const size_t width = DTypeBytes(dtype);
  if (std::memcmp(got, want, count * width) == 0) {
    return 0;
  }
  size_t wrong = 0;
  for (size_t i = 0; i < count; ++i) {
    const double is = NumberAt(dtype, static_cast<const char*>(got) + i * width);
    const double must = NumberAt(dtype, static_cast<const char*>(want) + i * width);
    // Written so that NaN counts as wrong.
    wrong += std::fabs(is - must) <= tolerance * std::fabs(must) ? 0 : 1;
  }
  return wrong;
}

double AverageTolerance(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return 0x1p-7;
    case DType::kFloat16:
      return 0x1p-10;
    case DType::kFloat64:
      return 0x1p-51;
    default:
      return 0x1p-22;
  }
}

const char* BenchTypeName(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat16:
      return "half";
    case DType::kFloat64:
      return "double";
    case DType::kInt32:
      return "int32";
    case DType::kInt64:
      return "int64";
    default:
      return "unknown";
  }
}

}  // namespace dtrain::comm
