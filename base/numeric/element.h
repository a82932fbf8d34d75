// Elements whose type is known only when the program runs, as numbers and back. Pure.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/numeric/dtype.h"
#include "base/numeric/float16.h"

namespace dtrain {

// Calls function(T()), where T is the type of the elements of `dtype`; a bool is a byte.
template <typename Function>
void WithElementType(DType dtype, Function function) {
  switch (dtype) {
    case DType::kFloat64:
      return function(double());
    case DType::kFloat32:
      return function(float());
    case DType::kBFloat16:
      return function(BFloat16());
    case DType::kFloat16:
      return function(Float16());
    case DType::kInt32:
      return function(int32_t());
    case DType::kInt64:
      return function(int64_t());
    case DType::kUInt8:
    case DType::kBool:
      return function(uint8_t());
  }
}

// The element at `at`, which need not be aligned.
template <typename T>
T ElementAt(const void* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

// The element as a number. Integers beyond 2^53 are rounded.
inline double ToDouble(BFloat16 value) { return static_cast<double>(ToFloat(value)); }
inline double ToDouble(Float16 value) { return static_cast<double>(ToFloat(value)); }
template <typename T>
double ToDouble(T value) {
  return static_cast<double>(value);
}

// The element for a number: floats are rounded to nearest even, those of 16 bits from fp32.
// REQUIRES: an integer type holds `value`.
template <typename T>
T FromDouble(double value) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return ToBFloat16(static_cast<float>(value));
  } else if constexpr (std::is_same_v<T, Float16>) {
    return ToFloat16(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

inline double NumberAt(DType dtype, const void* at) {
  double value = 0;
  WithElementType(dtype, [&](auto type) { value = ToDouble(ElementAt<decltype(type)>(at)); });
  return value;
}

inline void PutNumber(DType dtype, double value, void* at) {
  WithElementType(dtype, [&](auto type) {
    type = FromDouble<decltype(type)>(value);
    std::memcpy(at, &type, sizeof(type));
  });
}

}  // namespace dtrain
