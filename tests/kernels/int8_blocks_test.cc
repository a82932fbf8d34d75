#include "kernels/quantize/int8_blocks.h"

#include "tests/kernels/kernel_testing.h"

namespace dtrain::kernels::int8_blocks_test {
namespace {

using testing::Buffer;
using testing::EachVariant;

template <class T>
constexpr DType kTypeOf = sizeof(T) == 4 ? DType::kFloat32 : DType::kBFloat16;

template <class T>
struct Problem {
  Problem(int64_t count, int64_t block_size, int64_t shift = 0)
      : n(count),
        block(block_size),
        src(count, shift),
        back(count, shift),
        error(count, shift),
        scales(Int8Blocks(count, block_size)),
        values(static_cast<size_t>(count + shift), 99) {
    src.Fill(1, 3.0F);
    for (int64_t i = 0; i < n; i += 7) {  // Small beside its block's largest.
      testing::Assign(src[i], src(i) * 1e-3F);
    }
    data = values.data() + shift;
  }
  void Run(ParallelFor parallel_for) {
    QuantizeInt8Cpu({.n = n,
                     .block = block,
                     .src = {src.get(), kTypeOf<T>},
                     .values = data,
                     .scales = scales.get(),
                     .error = error.get()},
                    parallel_for);
    DequantizeInt8Cpu({.n = n,
                       .block = block,
                       .values = data,
                       .scales = scales.get(),
                       .dst = {back.get(), kTypeOf<T>}},
                      parallel_for);
  }
  bool SameBits(const Problem& other) const {
    return scales.SameBits(other.scales) && error.SameBits(other.error) &&
           back.SameBits(other.back) &&
           testing::SameBytes(data, other.data, static_cast<size_t>(n));
  }
  int64_t n, block;
  Buffer<T> src, back;
  Buffer<float> error, scales;
  std::vector<int8_t> values;
  int8_t* data;
};

template <class T>
class Int8BlocksTest : public ::testing::Test {};
using Types = ::testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(Int8BlocksTest, Types);

TYPED_TEST(Int8BlocksTest, IsOffByAtMostHalfAScaleAtEverySizeBlockAndAlignment) {
  EachVariant([](SimdLevel) {
    for (const int64_t n : testing::OddSizes()) {
      for (const int64_t block : {1, 5, 16, 100, 256, 1000}) {
        Problem<TypeParam> p(n, block, n % 3);
        p.Run(SerialFor);
        for (int64_t i = 0; i < n; ++i) {
          const double scale = p.scales(i / block);
          const double exact = p.data[i] * scale;
          // The nearest multiple by x * (1 / scale): that product is off by 2 ulp of at most 127.
          ASSERT_NEAR(exact, p.src(i), scale * (0.5 + 127 * 0x1p-22)) << n << ' ' << block;
          ASSERT_NEAR(p.back(i), exact, testing::HalfUlp<TypeParam>(exact) * 1.01);
          ASSERT_NEAR(p.error(i), p.src(i) - exact, testing::Ulp32(exact));
        }
        for (int64_t b = 0; b < Int8Blocks(n, block); ++b) {
          float largest = 0;
          int most = 0;
          for (int64_t i = b * block; i < std::min(n, (b + 1) * block); ++i) {
            largest = std::max(largest, std::fabs(p.src(i)));
            most = std::max(most, std::abs(int{p.data[i]}));
          }
          ASSERT_EQ(p.scales(b), largest / 127.0F);
          ASSERT_EQ(most, 127);
        }
        ASSERT_TRUE(p.back.GuardIntact() && p.error.GuardIntact() && p.scales.GuardIntact());
      }
    }
  });
}

TYPED_TEST(Int8BlocksTest, GivesTheSameBitsInEveryVariantAndSplit) {
  SetVariantForTesting(SimdLevel::kScalar);
  Problem<TypeParam> oracle(70'001, 256);
  oracle.Run(SerialFor);
  EachVariant([&](SimdLevel) {
    for (const testing::Split& split : testing::Splits()) {
      Problem<TypeParam> other(70'001, 256, 5);
      other.Run(split);
      ASSERT_TRUE(other.SameBits(oracle)) << split.threads << " threads";
    }
  });
}

TYPED_TEST(Int8BlocksTest, AddsToWhatIsThere) {
  EachVariant([](SimdLevel) {
    Problem<TypeParam> p(1003, 256);
    p.Run(SerialFor);
    Buffer<TypeParam> sum(1003);
    sum.Fill(8, 50.0F);
    const Buffer<TypeParam> before = sum;
    DequantizeInt8Cpu({.n = 1003,
                       .block = 256,
                       .values = p.data,
                       .scales = p.scales.get(),
                       .dst = {sum.get(), kTypeOf<TypeParam>},
                       .accumulate = true},
                      SerialFor);
    for (int64_t i = 0; i < 1003; ++i) {
      TypeParam expected;
      testing::Assign(expected, before(i) + static_cast<float>(p.data[i]) * p.scales(i / 256));
      ASSERT_EQ(sum(i), testing::ToF(expected)) << i;
    }
  });
}

TYPED_TEST(Int8BlocksTest, WritesPastTheCachesTheSameBits) {
  Problem<TypeParam> p((9 << 20) + 40, 256, 1);
  p.Run(SerialFor);
  const int64_t last = p.n / 256 * 256 - 2560;
  Buffer<TypeParam> part(2560);
  DequantizeInt8Cpu({.n = 2560,
                     .block = 256,
                     .values = p.data + last,
                     .scales = p.scales.get() + last / 256,
                     .dst = {part.get(), kTypeOf<TypeParam>}},
                    SerialFor);
  EXPECT_TRUE(testing::SameBytes(part.get(), p.back.get() + last, 2560 * sizeof(TypeParam)));
}

TEST(Int8BlocksSpecial, WhatIsNotFiniteComesBackAsNanAndTinyBlocksAsZeros) {
  EachVariant([](SimdLevel) {
    Buffer<float> x(5 * 64);
    x.Fill(2);
    x[10] = testing::kNan;
    x[64 + 63] = -testing::kInf;
    for (int64_t i = 0; i < 64; ++i) {
      x[128 + i] = i % 2 == 0 ? 0.0F : -0.0F;
      x[192 + i] = 1e-44F;  // 1 / (1e-44 / 127) is infinite.
    }
    const Buffer<float> before = x;
    int8_t values[5 * 64];
    float scales[5];
    Buffer<float> back(5 * 64);
    QuantizeInt8Cpu({.n = 5 * 64,
                     .block = 64,
                     .src = {x.get(), DType::kFloat32},
                     .values = values,
                     .scales = scales,
                     .error = x.get()},  // In place.
                    SerialFor);
    DequantizeInt8Cpu({.n = 5 * 64,
                       .block = 64,
                       .values = values,
                       .scales = scales,
                       .dst = {back.get(), DType::kFloat32}},
                      SerialFor);
    for (int64_t i = 0; i < 128; ++i) {
      ASSERT_TRUE(std::isnan(back(i)) && std::isnan(x(i))) << i;
      ASSERT_EQ(values[i], 0);
    }
    for (int64_t i = 128; i < 256; ++i) {
      ASSERT_EQ(back(i), 0.0F) << i;
      ASSERT_EQ(x(i), before(i)) << i;
    }
    ASSERT_GT(scales[4], 0.0F);
    ASSERT_EQ(back(260) + x(260), before(260));
  });
}

}  // namespace
}  // namespace dtrain::kernels::int8_blocks_test
