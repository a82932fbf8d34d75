#include "comm/compression/int8_blocks.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace dtrain::comm {
namespace {

constexpr float kLargest = 127.0F;
// Adding and taking away 1.5 * 2^23 leaves the nearest integer, ties to even, for |x| < 2^22.
constexpr float kToInteger = 12582912.0F;

// NaN when an element is not finite.
float ScaleOf(const float* values) {
  float largest = 0;
  float poison = 0;  // 0 * infinity and 0 * NaN are NaN.
  for (size_t i = 0; i < kInt8Block; ++i) {
    const float magnitude = std::fabs(values[i]);
    largest = magnitude > largest ? magnitude : largest;
    poison += values[i] * 0.0F;
  }
  return largest / kLargest + poison;
}

}  // namespace

void QuantizeInt8(const float* values, size_t count, uint8_t* out, float* error) {
  const size_t blocks = count / kInt8Block;
  auto* const packed = reinterpret_cast<int8_t*>(out + blocks * sizeof(float));
  for (size_t b = 0; b < blocks; ++b) {
    const float* const from = values + b * kInt8Block;
    int8_t* const to = packed + b * kInt8Block;
    float scale = ScaleOf(from);
    // A block of zeros, or of values so small that their scale has no inverse.
    const float inverse = 1.0F / scale;
    if (!(inverse <= std::numeric_limits<float>::max())) {
      scale = std::isnan(scale) ? scale : 0.0F;
    }
    std::memcpy(out + b * sizeof(float), &scale, sizeof(scale));
    const bool usable = scale > 0.0F;
    for (size_t i = 0; i < kInt8Block; ++i) {
      const float rounded = usable ? (from[i] * inverse + kToInteger) - kToInteger : 0.0F;
      to[i] = static_cast<int8_t>(rounded);
      if (error != nullptr) {
        error[b * kInt8Block + i] = from[i] - rounded * scale;
      }
    }
  }
}

void DequantizeInt8(const uint8_t* packed, size_t count, float* out, bool add) {
  const size_t blocks = count / kInt8Block;
  const auto* const values = reinterpret_cast<const int8_t*>(packed + blocks * sizeof(float));
  for (size_t b = 0; b < blocks; ++b) {
    float scale = 0;
    std::memcpy(&scale, packed + b * sizeof(float), sizeof(scale));
    const int8_t* const from = values + b * kInt8Block;
    float* const to = out + b * kInt8Block;
    if (add) {
      for (size_t i = 0; i < kInt8Block; ++i) {
        to[i] += static_cast<float>(from[i]) * scale;
      }
    } else {
      for (size_t i = 0; i < kInt8Block; ++i) {
        to[i] = static_cast<float>(from[i]) * scale;
      }
    }
  }
}

}  // namespace dtrain::comm
