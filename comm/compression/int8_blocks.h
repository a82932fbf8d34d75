// fp32 as int8 in blocks of 256 that share an fp32 scale: 260 bytes for 1,024.
//
// A block's largest magnitude becomes 127; every other value is the nearest multiple of
// scale = largest / 127, ties to even, so it is off by at most half a scale. A block with a NaN or
// an infinity comes back as NaN throughout. Pure; the same bits on every CPU: plain fp32 arithmetic
// in one order, no dispatch. A program that has kernels with dispatch gives them as Int8Codec.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dtrain::comm {

inline constexpr size_t kInt8Block = 256;

// Bytes of `count` values. REQUIRES: a multiple of kInt8Block.
constexpr size_t Int8Bytes(size_t count) {
  return count / kInt8Block * (kInt8Block + sizeof(float));
}

// `out` is [Int8Bytes(count)]: the scales, then the values. `error` (may be null, may be `values`)
// gets what rounding took away: value - what Dequantize gives. REQUIRES: `count` is a multiple of
// kInt8Block.
void QuantizeInt8(const float* values, size_t count, uint8_t* out, float* error);

// The values of `packed`, into `out` or added to it.
void DequantizeInt8(const uint8_t* packed, size_t count, float* out, bool add);

// The two functions as a compression calls them. REQUIRES: others give the same bits, but for the
// sign and the payload of a NaN, since the ranks of a group need not have the same functions.
struct Int8Codec {
  void (*quantize)(const float* values, size_t count, uint8_t* out, float* error) = QuantizeInt8;
  void (*dequantize)(const uint8_t* packed, size_t count, float* out, bool add) = DequantizeInt8;
};

}  // namespace dtrain::comm
