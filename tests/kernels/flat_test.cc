#include "kernels/flat.h"

#include <cstring>

#include "tests/kernels/kernel_testing.h"

namespace dtrain::kernels::flat_test {
namespace {

using testing::Buffer;
using testing::EachVariant;

template <class T>
constexpr DType DTypeOf() {
  return std::is_same_v<T, float>      ? DType::kFloat32
         : std::is_same_v<T, BFloat16> ? DType::kBFloat16
                                       : DType::kFloat16;
}
template <class T>
ConstFlat In(const Buffer<T>& buffer) {
  return {buffer.get(), DTypeOf<T>()};
}
template <class T>
MutableFlat Out(Buffer<T>& buffer) {
  return {buffer.get(), DTypeOf<T>()};
}

template <class From, class To>
struct Types {
  using Src = From;
  using Dst = To;
};
template <class Pair>
class Flat : public ::testing::Test {};
using Pairs =
    ::testing::Types<Types<float, float>, Types<float, BFloat16>, Types<float, Float16>,
                     Types<BFloat16, float>, Types<BFloat16, BFloat16>, Types<BFloat16, Float16>,
                     Types<Float16, float>, Types<Float16, BFloat16>, Types<Float16, Float16>>;
TYPED_TEST_SUITE(Flat, Pairs);

// The exact result is base/numeric/float16.h's conversion of one fp32 operation: no tolerance.
template <class T>
::testing::AssertionResult Is(const Buffer<T>& got, int64_t i, float exact) {
  T expected;
  testing::Assign(expected, exact);
  if (std::isnan(exact) ? std::isnan(got(i))
                        : testing::SameBytes(&expected, got.get() + i, sizeof(T))) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << "element " << i << " is " << got(i) << ", not " << exact;
}

TYPED_TEST(Flat, CopiesScalesAndAccumulatesExactlyAtEverySizeAndAlignment) {
  using Src = typename TypeParam::Src;
  using Dst = typename TypeParam::Dst;
  EachVariant([](SimdLevel) {
    for (const int64_t n : testing::OddSizes()) {
      for (const int64_t shift : {0, 3}) {
        Buffer<Src> src(n, shift);
        src.Fill(1, 300.0F);
        Buffer<Dst> before(n, 1);
        before.Fill(2, 10.0F);
        Buffer<Dst> copy(n, shift);
        Buffer<Dst> scaled(n, shift);
        Buffer<Dst> added = before;
        CopyCpu(n, In(src), Out(copy), SerialFor);
        ScaleCpu(n, In(src), Out(scaled), 0.3F, SerialFor);
        AccumulateCpu(n, In(src), Out(added), SerialFor);
        for (int64_t i = 0; i < n; ++i) {
          ASSERT_TRUE(Is(copy, i, src(i)));
          ASSERT_TRUE(Is(scaled, i, src(i) * 0.3F));
          ASSERT_TRUE(Is(added, i, before(i) + src(i)));
        }
        ASSERT_TRUE(copy.GuardIntact() && scaled.GuardIntact() && added.GuardIntact()) << n;
      }
    }
  });
}

TYPED_TEST(Flat, TakesEverySpecialValue) {
  using Src = typename TypeParam::Src;
  using Dst = typename TypeParam::Dst;
  const std::vector<float> special = {
      0.0F,     -0.0F,     testing::kInf, -testing::kInf, testing::kNan, 65504.0F,   65519.9F,
      65520.0F, -65536.0F, 3.4e38F,       1e-8F,          6e-8F,         2.98e-8F,   5.9e-8F,
      6.1e-5F,  1e-40F,    1.0039062F,    1.01171875F,    0x1.004p0F,    -0x1.00cp0F};
  EachVariant([&](SimdLevel) {
    Buffer<Src> src(static_cast<int64_t>(special.size()));
    for (size_t i = 0; i < special.size(); ++i) {
      testing::Assign(src[static_cast<int64_t>(i)], special[i]);
    }
    Buffer<Dst> dst(src.size());
    CopyCpu(src.size(), In(src), Out(dst), SerialFor);
    for (int64_t i = 0; i < src.size(); ++i) {
      EXPECT_TRUE(Is(dst, i, src(i)));
    }
  });
}

TYPED_TEST(Flat, GivesTheSameBitsInEverySplitAndPastTheCaches) {
  using Src = typename TypeParam::Src;
  using Dst = typename TypeParam::Dst;
  const int64_t n = (9 << 20) + 7;
  Buffer<Src> src(n, 1);
  src.Fill(3, 5.0F);
  Buffer<Dst> whole(n, 1);  // Aligned to nothing: the streaming loop must first reach a line.
  ScaleCpu(n, In(src), Out(whole), 1.7F, SerialFor);
  for (int64_t i = 0; i < n; ++i) {
    ASSERT_TRUE(Is(whole, i, src(i) * 1.7F));
  }
  ASSERT_TRUE(whole.GuardIntact());
  Buffer<Dst> split(n, 1);
  ScaleCpu(n, In(src), Out(split), 1.7F, testing::Split{.threads = 3, .grains = 5});
  EXPECT_TRUE(split.SameBits(whole));
}

TYPED_TEST(Flat, CopiesEveryBitPastTheCaches) {
  using Src = typename TypeParam::Src;
  if constexpr (std::is_same_v<Src, typename TypeParam::Dst>) {
    const int64_t n = (9 << 20) + 7;
    EachVariant([&](SimdLevel) {
      Buffer<Src> src(n, 3);
      uint64_t state = 7;
      for (int64_t i = 0; i < n; ++i) {  // Signalling NaNs among them.
        state = state * 6364136223846793005U + 1442695040888963407U;
        std::memcpy(&src[i], reinterpret_cast<const char*>(&state) + 4, sizeof(Src));
      }
      for (const int64_t shift : {0, 1, 3}) {
        Buffer<Src> dst(n, shift);
        CopyCpu(n, In(src), Out(dst), testing::Split{.threads = 3, .grains = 5});
        ASSERT_TRUE(dst.SameBits(src) && dst.GuardIntact()) << shift;
      }
    });
  }
}

// Every 16-bit value, through each conversion: the SIMD forms agree with base/numeric/float16.h.
TEST(FlatExhaustive, WidensEverySixteenBitValue) {
  EachVariant([](SimdLevel) {
    Buffer<BFloat16> bf16(65536);
    Buffer<Float16> f16(65536);
    for (uint32_t i = 0; i < 65536; ++i) {
      bf16[i].bits = static_cast<uint16_t>(i);
      f16[i].bits = static_cast<uint16_t>(i);
    }
    Buffer<float> wide(65536);
    CopyCpu(65536, In(bf16), Out(wide), SerialFor);
    for (int64_t i = 0; i < 65536; ++i) {
      ASSERT_TRUE(Is(wide, i, bf16(i)));
    }
    CopyCpu(65536, In(f16), Out(wide), SerialFor);
    for (int64_t i = 0; i < 65536; ++i) {
      ASSERT_TRUE(Is(wide, i, f16(i)));
    }
  });
}

TEST(FlatExhaustive, RoundsAFineSweepOfFloatsToNearestEven) {
  EachVariant([](SimdLevel level) {
    const uint32_t stride = level == SimdLevel::kScalar ? 104'729 : 7'919;  // Primes.
    std::vector<uint32_t> bits;
    for (uint64_t b = 0; b <= 0xffffffffU; b += stride) {
      bits.push_back(static_cast<uint32_t>(b));
      bits.push_back(static_cast<uint32_t>(b) | 0x7fffU);  // Around bf16's ties.
      bits.push_back((static_cast<uint32_t>(b) & 0xffff0000U) | 0x8000U);
      bits.push_back((static_cast<uint32_t>(b) & 0xffffe000U) | 0x1000U);  // fp16's ties.
    }
    const auto n = static_cast<int64_t>(bits.size());
    Buffer<BFloat16> bf16(n);
    Buffer<Float16> f16(n);
    const ConstFlat src{bits.data(), DType::kFloat32};
    CopyCpu(n, src, Out(bf16), SerialFor);
    CopyCpu(n, src, Out(f16), SerialFor);
    for (int64_t i = 0; i < n; ++i) {
      const float exact = std::bit_cast<float>(bits[static_cast<size_t>(i)]);
      ASSERT_TRUE(Is(bf16, i, exact));
      ASSERT_TRUE(Is(f16, i, exact));
    }
  });
}

TEST(FlatFill, WritesTheRoundedValueEverywhere) {
  EachVariant([](SimdLevel) {
    for (const int64_t n : testing::OddSizes()) {
      Buffer<BFloat16> b(n, 1);
      Buffer<float> f(n, 1);
      FillCpu(n, 1.005F, Out(b), testing::Split{.threads = 2});
      FillCpu(n, 1.005F, Out(f), testing::Split{.threads = 2});
      for (int64_t i = 0; i < n; ++i) {
        ASSERT_TRUE(Is(b, i, 1.005F));
        ASSERT_TRUE(Is(f, i, 1.005F));
      }
      ASSERT_TRUE(b.GuardIntact() && f.GuardIntact());
    }
  });
}

// To the bits of base/numeric/float16.h, into another buffer and onto itself.
TEST(FlatRound, GivesWhatBf16HoldsAndKeepsIt) {
  EachVariant([](SimdLevel) {
    for (const int64_t n : testing::OddSizes()) {
      Buffer<float> src(n, 1);
      src.Fill(5, 300.0F);
      Buffer<float> apart(n, 3);
      Buffer<BFloat16> kept(n, 1);
      RoundToBf16Cpu(n, src.get(), apart.get(), kept.get(), testing::Split{.threads = 2});
      Buffer<float> in_place = src;
      RoundToBf16Cpu(n, in_place.get(), in_place.get(), nullptr, SerialFor);
      for (int64_t i = 0; i < n; ++i) {
        ASSERT_TRUE(Is(kept, i, src(i)));
        ASSERT_EQ(apart(i), ToFloat(ToBFloat16(src(i))));
      }
      ASSERT_TRUE(in_place.SameBits(apart));
      ASSERT_TRUE(apart.GuardIntact() && kept.GuardIntact() && in_place.GuardIntact()) << n;
    }
  });
}

TEST(FlatInPlace, ScalesABufferOntoItself) {
  Buffer<float> x(5001, 1);
  x.Fill(4);
  const Buffer<float> before = x;
  ScaleCpu(x.size(), In(x), Out(x), 2.0F, SerialFor);
  CopyCpu(x.size(), In(x), Out(x), SerialFor);
  for (int64_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(x(i), 2 * before(i));
  }
}

TEST(FlatDeath, RefusesIntegers) {
  int32_t from = 1;
  float to = 0;
  EXPECT_DEATH(ScaleCpu(1, {&from, DType::kInt32}, {&to, DType::kFloat32}, 1.0F, SerialFor),
               "not int32");
}

}  // namespace
}  // namespace dtrain::kernels::flat_test
