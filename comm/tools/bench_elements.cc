#include "comm/tools/bench_elements.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "base/numeric/float16.h"

namespace dtrain::comm {
namespace {

constexpr size_t kPeriod = 61;
static_assert(kBenchTile % kPeriod == 0);

void Write(DType dtype, double value, char* at) {
  const auto put = [at](auto typed) { std::memcpy(at, &typed, sizeof(typed)); };
  switch (dtype) {
    case DType::kFloat32:
      return put(static_cast<float>(value));
    case DType::kBFloat16:
      return put(ToBFloat16(static_cast<float>(value)));
    case DType::kFloat16:
      return put(ToFloat16(static_cast<float>(value)));
    case DType::kFloat64:
      return put(value);
    case DType::kInt32:
      return put(static_cast<int32_t>(value));
    case DType::kInt64:
      return put(static_cast<int64_t>(value));
    default:
      DT_CHECK(false) << "no benchmark of " << DTypeName(dtype);
  }
}

double Read(DType dtype, const char* at) {
  const auto get = [at](auto typed) {
    std::memcpy(&typed, at, sizeof(typed));
    return typed;
  };
  switch (dtype) {
    case DType::kFloat32:
      return get(float{});
    case DType::kBFloat16:
      return ToFloat(get(BFloat16{}));
    case DType::kFloat16:
      return ToFloat(get(Float16{}));
    case DType::kFloat64:
      return get(double{});
    case DType::kInt32:
      return get(int32_t{});
    default:
      return static_cast<double>(get(int64_t{}));
  }
}

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
    Write(dtype, value(first + i), tile.data() + i * width);
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
    const double is = Read(dtype, static_cast<const char*>(got) + i * width);
    const double must = Read(dtype, static_cast<const char*>(want) + i * width);
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
