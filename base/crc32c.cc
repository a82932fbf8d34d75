#include "base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/crc32c_forms.h"

namespace dtrain {
namespace crc32c {
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

}  // namespace

uint32_t Portable(const uint8_t* data, size_t bytes, uint32_t state) {
  for (size_t i = 0; i < bytes; ++i) {
    state = (state >> 8) ^ kTable[(state ^ data[i]) & 0xffU];
  }
  return state;
}

#if defined(__x86_64__)
namespace {

// GF(2) matrices: how a CRC state changes when `n` zero bytes follow it. They let three independent
// streams run at once (the crc32 instruction has a latency of 3 and a throughput of 1).
using Matrix = std::array<uint32_t, 32>;
constexpr size_t kStream = kThreeStreams / 3;

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

}  // namespace

bool HasHardware() { return __builtin_cpu_supports("sse4.2") != 0; }

__attribute__((target("sse4.2"))) uint32_t Hardware(const uint8_t* data, size_t bytes,
                                                    uint32_t state) {
  static const ShiftTable shift = MakeShift(kStream);
  const auto load = [](const uint8_t* p) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    return word;
  };
  uint64_t a = state;
  while (bytes >= kThreeStreams) {
    uint64_t b = 0;
    uint64_t c = 0;
    for (size_t i = 0; i < kStream; i += 8) {
      a = _mm_crc32_u64(a, load(data + i));
      b = _mm_crc32_u64(b, load(data + kStream + i));
      c = _mm_crc32_u64(c, load(data + 2 * kStream + i));
    }
    a = shift(shift(static_cast<uint32_t>(a)) ^ static_cast<uint32_t>(b)) ^
        static_cast<uint32_t>(c);
    data += kThreeStreams;
    bytes -= kThreeStreams;
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

// Folding (Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ", Intel
// 2009): 128 bits of a message may be replaced by their carry-less products with x^(d + 32) and
// x^(d - 32) mod P, added to the 128 bits that come d bits later. Four registers of 512 bits do so
// at once, which is as fast as memory; 128 bits are left in the end for the instruction.
namespace {

// Distance of prefetches, which may go past the end: 11 GB/s from memory without them, 14.5 with
// them.
constexpr size_t kAhead = 2048;

constexpr uint64_t PowerOfX(int degree) {  // x^degree mod P, reflected as the instruction needs it.
  uint32_t state = 0x80000000U;            // x^0.
  for (int i = 0; i < degree; ++i) {
    state = (state >> 1) ^ ((state & 1U) != 0 ? kPolynomial : 0U);
  }
  return static_cast<uint64_t>(state) << 1;
}
constexpr long long Factor(int degree) { return static_cast<long long>(PowerOfX(degree)); }

}  // namespace

bool HasFolded() {
  return HasHardware() && __builtin_cpu_supports("avx512f") != 0 &&
         __builtin_cpu_supports("vpclmulqdq") != 0;
}

__attribute__((target("avx512f,vpclmulqdq,pclmul,sse4.2"))) uint32_t Folded(const uint8_t* data,
                                                                            size_t bytes,
                                                                            uint32_t state) {
  // Constants to fold by 2048 bits, the width of four registers, by 512 and by 128.
  const __m512i by4 = _mm512_set4_epi64(Factor(2016), Factor(2080), Factor(2016), Factor(2080));
  const __m512i by1 = _mm512_set4_epi64(Factor(480), Factor(544), Factor(480), Factor(544));
  const __m128i lane = _mm_set_epi64x(Factor(96), Factor(160));
  const auto xor3 = 0x96;
  __m512i a = _mm512_loadu_si512(data);
  __m512i b = _mm512_loadu_si512(data + 64);
  __m512i c = _mm512_loadu_si512(data + 128);
  __m512i d = _mm512_loadu_si512(data + 192);
  a = _mm512_xor_si512(a, _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(state))));
#define DT_FOLD(x, factors, next)                                       \
  _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(x, factors, 0x00), \
                            _mm512_clmulepi64_epi128(x, factors, 0x11), next, xor3)
  for (size_t at = kFolded; at < bytes; at += kFolded) {
    for (size_t line = 0; line < kFolded; line += 64) {
      __builtin_prefetch(data + at + kAhead + line);
    }
    a = DT_FOLD(a, by4, _mm512_loadu_si512(data + at));
    b = DT_FOLD(b, by4, _mm512_loadu_si512(data + at + 64));
    c = DT_FOLD(c, by4, _mm512_loadu_si512(data + at + 128));
    d = DT_FOLD(d, by4, _mm512_loadu_si512(data + at + 192));
  }
  b = DT_FOLD(a, by1, b);
  c = DT_FOLD(b, by1, c);
  d = DT_FOLD(c, by1, d);
#undef DT_FOLD
  alignas(64) __m128i lanes[4];
  _mm512_store_si512(lanes, d);
  __m128i rest = lanes[0];
  for (int i = 1; i < 4; ++i) {
    rest = _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(rest, lane, 0x00),
                                       _mm_clmulepi64_si128(rest, lane, 0x11)),
                         lanes[i]);
  }
  const uint64_t low = _mm_crc32_u64(0, static_cast<uint64_t>(_mm_cvtsi128_si64(rest)));
  return static_cast<uint32_t>(
      _mm_crc32_u64(low, static_cast<uint64_t>(_mm_extract_epi64(rest, 1))));
}

// Folding beside the instruction. With 256 bits folding alone is hardly faster than three streams
// (Linux 6 folds CRC-32C only with good AVX-512), but the two use different units of the core. The
// first part of a block of kFusedBlock bytes is folded while the instruction takes the rest in
// three streams. Products with powers of x then combine the parts, and only there the state of the
// block before is needed, so that blocks overlap. The constants are x^d mod P as above, computed at
// compile time.
namespace {

constexpr size_t kFoldRound = kFused;   // Bytes that four registers of 256 bits fold at once.
constexpr size_t kStreamRound = 5 * 8;  // Bytes of each stream during one round of folding.
constexpr size_t kFuseRounds = 32;
constexpr size_t kFoldPart = kFuseRounds * kFoldRound;
constexpr size_t kStreamPart = kFuseRounds * kStreamRound;
static_assert(kFusedBlock == kFoldPart + 3 * kStreamPart);

// The factor that advances a state over `bytes` zeros: the state is multiplied with it and put
// through the instruction, which multiplies with x^32.
constexpr uint64_t ZerosFactor(size_t bytes) { return PowerOfX(8 * static_cast<int>(bytes) - 32); }
constexpr uint64_t kAfterBlock = ZerosFactor(kFusedBlock);
constexpr uint64_t kAfterThree = ZerosFactor(3 * kStreamPart);
constexpr uint64_t kAfterTwo = ZerosFactor(2 * kStreamPart);
constexpr uint64_t kAfterOne = ZerosFactor(kStreamPart);
// Constants to fold by 1024 bits, the width of four registers, by 256 and by 128.
constexpr long long kBy4[2] = {Factor(1056), Factor(992)};
constexpr long long kBy1[2] = {Factor(288), Factor(224)};
constexpr long long kByLane[2] = {Factor(160), Factor(96)};

#define DT_FUSED __attribute__((target("avx2,vpclmulqdq,pclmul,sse4.2"), always_inline)) inline

struct Folds {
  __m256i a, b, c, d;
};

DT_FUSED __m256i Load256(const uint8_t* data) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data));
}

DT_FUSED Folds LoadRound(const uint8_t* data) {
  return {Load256(data), Load256(data + 32), Load256(data + 64), Load256(data + 96)};
}

DT_FUSED __m256i Fold256(__m256i x, __m256i factors, __m256i next) {
  return _mm256_xor_si256(_mm256_xor_si256(_mm256_clmulepi64_epi128(x, factors, 0x00), next),
                          _mm256_clmulepi64_epi128(x, factors, 0x11));
}

DT_FUSED void FoldRound(Folds& folds, const uint8_t* data) {
  const __m256i by4 = _mm256_set_epi64x(kBy4[1], kBy4[0], kBy4[1], kBy4[0]);
  folds.a = Fold256(folds.a, by4, Load256(data));
  folds.b = Fold256(folds.b, by4, Load256(data + 32));
  folds.c = Fold256(folds.c, by4, Load256(data + 64));
  folds.d = Fold256(folds.d, by4, Load256(data + 96));
}

// The CRC state after all folded bytes.
DT_FUSED uint64_t EndFolds(const Folds& folds) {
  const __m256i by1 = _mm256_set_epi64x(kBy1[1], kBy1[0], kBy1[1], kBy1[0]);
  const __m128i by_lane = _mm_set_epi64x(kByLane[1], kByLane[0]);
  const __m256i last = Fold256(Fold256(Fold256(folds.a, by1, folds.b), by1, folds.c), by1, folds.d);
  const __m128i low = _mm256_castsi256_si128(last);
  const __m128i rest = _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(low, by_lane, 0x00),
                                                   _mm_clmulepi64_si128(low, by_lane, 0x11)),
                                     _mm256_extracti128_si256(last, 1));
  const uint64_t half = _mm_crc32_u64(0, static_cast<uint64_t>(_mm_cvtsi128_si64(rest)));
  return _mm_crc32_u64(half, static_cast<uint64_t>(_mm_extract_epi64(rest, 1)));
}

struct Streams {
  uint64_t a = 0;
  uint64_t b = 0;
  uint64_t c = 0;
};

DT_FUSED void StreamRound(Streams& streams, const uint8_t* data) {
  for (size_t i = 0; i < kStreamRound; i += 8) {
    uint64_t word;
    std::memcpy(&word, data + i, 8);
    streams.a = _mm_crc32_u64(streams.a, word);
    std::memcpy(&word, data + kStreamPart + i, 8);
    streams.b = _mm_crc32_u64(streams.b, word);
    std::memcpy(&word, data + 2 * kStreamPart + i, 8);
    streams.c = _mm_crc32_u64(streams.c, word);
  }
}

DT_FUSED __m128i Product(uint64_t state, uint64_t factor) {
  return _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<long long>(state)),
                              _mm_cvtsi64_si128(static_cast<long long>(factor)), 0x00);
}

DT_FUSED uint32_t FuseBlock(const uint8_t* data, uint32_t state) {
  const uint8_t* const streamed = data + kFoldPart;
  Folds folds = LoadRound(data);
  Streams streams;
  StreamRound(streams, streamed);
  for (size_t round = 1; round < kFuseRounds; ++round) {
    // Prefetch the next block, possibly past the end.
    for (size_t line = 0; line < 256; line += 64) {
      __builtin_prefetch(data + kFusedBlock + round * 256 + line);
    }
    FoldRound(folds, data + round * kFoldRound);
    StreamRound(streams, streamed + round * kStreamRound);
  }
  const __m128i met = _mm_xor_si128(
      _mm_xor_si128(Product(EndFolds(folds), kAfterThree), Product(streams.a, kAfterTwo)),
      _mm_xor_si128(Product(streams.b, kAfterOne), Product(state, kAfterBlock)));
  return static_cast<uint32_t>(_mm_crc32_u64(0, static_cast<uint64_t>(_mm_cvtsi128_si64(met))) ^
                               streams.c);
}

#undef DT_FUSED

}  // namespace

bool HasFused() {
  return HasHardware() && __builtin_cpu_supports("avx2") != 0 &&
         __builtin_cpu_supports("pclmul") != 0 && __builtin_cpu_supports("vpclmulqdq") != 0;
}

__attribute__((target("avx2,vpclmulqdq,pclmul,sse4.2"))) uint32_t Fused(const uint8_t* data,
                                                                        size_t bytes,
                                                                        uint32_t state) {
  for (; bytes >= kFusedBlock; data += kFusedBlock, bytes -= kFusedBlock) {
    state = FuseBlock(data, state);
  }
  if (bytes == 0) {
    return state;
  }
  Folds folds = LoadRound(data);
  folds.a =
      _mm256_xor_si256(folds.a, _mm256_zextsi128_si256(_mm_cvtsi32_si128(static_cast<int>(state))));
  for (size_t at = kFused; at < bytes; at += kFused) {
    FoldRound(folds, data + at);
  }
  return static_cast<uint32_t>(EndFolds(folds));
}

namespace {

// The fastest form for whole units of bytes; the instruction takes the rest.
struct Fastest {
  // Null: the CPU has no such form.
  uint32_t (*form)(const uint8_t* data, size_t bytes, uint32_t state);
  size_t unit;  // Bytes of a unit; a power of two.
};

Fastest ChooseFastest() {
  return HasFolded()  ? Fastest{Folded, kFolded}
         : HasFused() ? Fastest{Fused, kFused}
                      : Fastest{nullptr, size_t{1} << 63};
}

}  // namespace
#endif

}  // namespace crc32c

uint32_t Crc32c(const void* data, size_t bytes, uint32_t crc) {
  const auto* const begin = static_cast<const uint8_t*>(data);
#if defined(__x86_64__)
  static const bool hardware = crc32c::HasHardware();
  static const crc32c::Fastest fastest = crc32c::ChooseFastest();
  if (hardware) {
    const size_t folded = bytes & ~(fastest.unit - 1);
    const uint32_t state = folded > 0 ? fastest.form(begin, folded, ~crc) : ~crc;
    return ~crc32c::Hardware(begin + folded, bytes - folded, state);
  }
#endif
  return ~crc32c::Portable(begin, bytes, ~crc);
}

}  // namespace dtrain
