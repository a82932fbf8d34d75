#include "base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace dtrain {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // Reflected.

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1U) != 0 ? kPolynomial : 0U);
    }
    table[i] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = MakeTable();

uint32_t Portable(const uint8_t* data, size_t bytes, uint32_t state) {
  for (size_t i = 0; i < bytes; ++i) {
    state = (state >> 8) ^ kTable[(state ^ data[i]) & 0xffU];
  }
  return state;
}

#if defined(__x86_64__)
// GF(2) matrices: how a CRC state changes when `n` zero bytes follow it. They let three independent
// streams run at once (the crc32 instruction has a latency of 3 and a throughput of 1).
using Matrix = std::array<uint32_t, 32>;
constexpr size_t kStream = 4096;

constexpr uint32_t Times(const Matrix& matrix, uint32_t vector) {
  uint32_t sum = 0;
  for (size_t i = 0; vector != 0; vector >>= 1, ++i) {
    sum ^= (vector & 1U) != 0 ? matrix[i] : 0U;
  }
  return sum;
}

constexpr Matrix Square(const Matrix& matrix) {
  Matrix square{};
  for (size_t i = 0; i < 32; ++i) {
    square[i] = Times(matrix, matrix[i]);
  }
  return square;
}

constexpr Matrix ZeroBytes(size_t bytes_power_of_two) {
  Matrix matrix{};
  matrix[0] = kPolynomial;
  for (size_t i = 1; i < 32; ++i) {
    matrix[i] = 1U << (i - 1);
  }
  for (size_t bits = 1; bits < 8 * bytes_power_of_two; bits *= 2) {
    matrix = Square(matrix);
  }
  return matrix;
}

struct ShiftTable {
  std::array<std::array<uint32_t, 256>, 4> t{};
  constexpr uint32_t operator()(uint32_t crc) const {
    return t[0][crc & 0xffU] ^ t[1][(crc >> 8) & 0xffU] ^ t[2][(crc >> 16) & 0xffU] ^
           t[3][crc >> 24];
  }
};

ShiftTable MakeShift(size_t bytes) {
  const Matrix matrix = ZeroBytes(bytes);
  ShiftTable shift;
  for (uint32_t i = 0; i < 256; ++i) {
    for (uint32_t byte = 0; byte < 4; ++byte) {
      shift.t[byte][i] = Times(matrix, i << (8 * byte));
    }
  }
  return shift;
}

__attribute__((target("sse4.2"))) uint32_t Hardware(const uint8_t* data, size_t bytes,
                                                    uint32_t state) {
  static const ShiftTable shift = MakeShift(kStream);
  const auto load = [](const uint8_t* p) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    return word;
  };
  uint64_t a = state;
  while (bytes >= 3 * kStream) {
    uint64_t b = 0;
    uint64_t c = 0;
    for (size_t i = 0; i < kStream; i += 8) {
      a = _mm_crc32_u64(a, load(data + i));
      b = _mm_crc32_u64(b, load(data + kStream + i));
      c = _mm_crc32_u64(c, load(data + 2 * kStream + i));
    }
    a = shift(shift(static_cast<uint32_t>(a)) ^ static_cast<uint32_t>(b)) ^
        static_cast<uint32_t>(c);
    data += 3 * kStream;
    bytes -= 3 * kStream;
  }
  for (; bytes >= 8; data += 8, bytes -= 8) {
    a = _mm_crc32_u64(a, load(data));
  }
  auto tail = static_cast<uint32_t>(a);
  for (; bytes > 0; ++data, --bytes) {
    tail = _mm_crc32_u8(tail, *data);
  }
  return tail;
}
#endif

}  // namespace

uint32_t Crc32c(const void* data, size_t bytes, uint32_t crc) {
  const auto* const begin = static_cast<const uint8_t*>(data);
#if defined(__x86_64__)
  static const bool hardware = __builtin_cpu_supports("sse4.2") != 0;
  if (hardware) {
    return ~Hardware(begin, bytes, ~crc);
  }
#endif
  return ~Portable(begin, bytes, ~crc);
}

}  // namespace dtrain
