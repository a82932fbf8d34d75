#include "kernels/quantize/fp8.h"

#include "tests/kernels/kernel_testing.h"

namespace dtrain::kernels::fp8_test {
namespace {

using testing::Buffer;
using testing::EachVariant;

constexpr Fp8Format kFormats[] = {Fp8Format::kE4m3, Fp8Format::kE5m2};

// The value that a code has by the definition of its format.
double ValueOf(int code, Fp8Format format) {
  const bool e4m3 = format == Fp8Format::kE4m3;
  const int mantissa_bits = e4m3 ? 3 : 2;
  const int bias = e4m3 ? 7 : 15;
  const int exponent = (code & 0x7f) >> mantissa_bits;
  const int mantissa = code & ((1 << mantissa_bits) - 1);
  const double sign = (code & 0x80) != 0 ? -1 : 1;
  if (e4m3 ? (code & 0x7f) == 0x7f : exponent == 31 && mantissa != 0) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (!e4m3 && exponent == 31) {
    return sign * std::numeric_limits<double>::infinity();
  }
  const double fraction = std::ldexp(mantissa, -mantissa_bits);
  return sign * (exponent == 0 ? std::ldexp(fraction, 1 - bias)
                               : std::ldexp(1 + fraction, exponent - bias));
}

// The nearest code by looking at all of them: ties to the even one, beyond the largest the largest.
uint8_t NearestCode(double x, Fp8Format format) {
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  if (std::isnan(x)) {
    return 0x7f | sign;
  }
  const double magnitude = std::fabs(x);
  const int largest = format == Fp8Format::kE4m3 ? 0x7e : 0x7b;
  if (magnitude >= ValueOf(largest, format)) {
    return static_cast<uint8_t>(largest | sign);
  }
  int best = 0;
  for (int code = 1; code <= largest; ++code) {
    const double distance = std::fabs(ValueOf(code, format) - magnitude);
    const double best_distance = std::fabs(ValueOf(best, format) - magnitude);
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) {
      best = code;
    }
  }
  return static_cast<uint8_t>(best | sign);
}

std::vector<uint8_t> Encode(const std::vector<float>& x, Fp8Format format, float scale = 1) {
  std::vector<uint8_t> codes(x.size());
  CastToFp8Cpu({.n = static_cast<int64_t>(x.size()),
                .format = format,
                .src = {x.data(), DType::kFloat32},
                .dst = codes.data()},
               scale, SerialFor);
  return codes;
}

TEST(Fp8, DecodesEveryCode) {
  EachVariant([](SimdLevel) {
    for (const Fp8Format format : kFormats) {
      std::vector<uint8_t> codes(256);
      std::vector<float> values(256);
      for (int code = 0; code < 256; ++code) {
        codes[static_cast<size_t>(code)] = static_cast<uint8_t>(code);
      }
      CastFromFp8Cpu({.n = 256,
                      .format = format,
                      .src = codes.data(),
                      .dst = {values.data(), DType::kFloat32}},
                     1, SerialFor);
      for (int code = 0; code < 256; ++code) {
        const double expected = ValueOf(code, format);
        const float value = values[static_cast<size_t>(code)];
        if (std::isnan(expected)) {
          ASSERT_TRUE(std::isnan(value)) << code;
        } else {
          ASSERT_EQ(value, expected) << code;
          ASSERT_EQ(std::signbit(value), code >= 128) << code;
        }
      }
    }
  });
}

// Rounding is monotonic, so it is right everywhere when it is right on both sides of every place
// where the code changes: the middles between neighbours, exactly and one fp32 value off.
TEST(Fp8, RoundsRightAtEveryCodeAndEveryMiddle) {
  EachVariant([](SimdLevel) {
    for (const Fp8Format format : kFormats) {
      const int largest = format == Fp8Format::kE4m3 ? 0x7e : 0x7b;
      std::vector<float> x;
      const auto around = [&](float value) {
        for (const float v : {std::nextafter(value, 0.0F), value,
                              std::nextafter(value, std::numeric_limits<float>::infinity())}) {
          x.push_back(v);
          x.push_back(-v);
        }
      };
      for (int code = 0; code <= largest; ++code) {
        const double value = ValueOf(code, format);
        around(static_cast<float>(value));
        around(static_cast<float>((value + ValueOf(std::min(code + 1, largest), format)) / 2));
      }
      x.insert(x.end(), {testing::kInf, -testing::kInf, testing::kNan, -testing::kNan, 1e-45F,
                         -1e-45F, 3e38F, std::numeric_limits<float>::max()});
      const std::vector<uint8_t> codes = Encode(x, format);
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_EQ(codes[i], NearestCode(x[i], format)) << x[i];
      }
    }
  });
}

TEST(Fp8, RoundsEveryBf16ValueRight) {
  std::vector<BFloat16> x(65536);
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    x[bits] = {static_cast<uint16_t>(bits)};
  }
  EachVariant([&](SimdLevel) {
    for (const Fp8Format format : kFormats) {
      std::vector<uint8_t> codes(65536);
      CastToFp8Cpu(
          {.n = 65536, .format = format, .src = {x.data(), DType::kBFloat16}, .dst = codes.data()},
          1, SerialFor);
      for (uint32_t bits = 0; bits < 65536; ++bits) {
        ASSERT_EQ(codes[bits], NearestCode(double{ToFloat(x[bits])}, format)) << bits;
      }
    }
  });
}

// Every 251st of all fp32 values (251 is odd, so all low bits come), against the scalar variant.
TEST(Fp8, EveryVariantGivesTheScalarsCodesOverAllOfFp32) {
  constexpr uint32_t kStride = 251;
  constexpr int64_t kCount = 1 << 20;
  std::vector<float> x(kCount);
  for (uint32_t start = 0; start < 16; ++start) {
    for (int64_t i = 0; i < kCount; ++i) {
      const auto step = static_cast<uint32_t>(start * kCount + i);
      x[static_cast<size_t>(i)] = std::bit_cast<float>(step * kStride);
    }
    for (const Fp8Format format : kFormats) {
      SetVariantForTesting(SimdLevel::kScalar);
      const std::vector<uint8_t> oracle = Encode(x, format);
      EachVariant([&](SimdLevel) { ASSERT_EQ(Encode(x, format), oracle); });
    }
  }
}

TEST(Fp8, ScalesBothWaysAtEverySizeAndAlignment) {
  EachVariant([](SimdLevel) {
    for (const int64_t n : testing::OddSizes()) {
      for (const Fp8Format format : kFormats) {
        const int64_t shift = n % 3;
        Buffer<float> x(n, shift);
        Buffer<BFloat16> back(n, shift);
        x.Fill(1, 1e-3F);
        std::vector<uint8_t> codes(static_cast<size_t>(n + shift) + 32, 0xaa);
        float amax = -1;
        CastToFp8Cpu({.n = n,
                      .format = format,
                      .src = {x.get(), DType::kFloat32},
                      .dst = codes.data() + shift,
                      .amax = &amax},
                     4e4F, testing::Split{2, 1});
        float expected_amax = 0;
        for (int64_t i = 0; i < n; ++i) {
          expected_amax = std::max(expected_amax, std::fabs(x(i)));
          ASSERT_EQ(codes[static_cast<size_t>(i + shift)], NearestCode(x(i) * 4e4F, format));
        }
        ASSERT_EQ(amax, expected_amax);
        ASSERT_EQ(AmaxCpu(n, {x.get(), DType::kFloat32}, testing::Split{3, 1}), amax);
        ASSERT_EQ(codes[static_cast<size_t>(n + shift)], 0xaa);
        CastFromFp8Cpu({.n = n,
                        .format = format,
                        .src = codes.data() + shift,
                        .dst = {back.get(), DType::kBFloat16}},
                       0.25F, SerialFor);
        for (int64_t i = 0; i < n; ++i) {  // A scaled code has few bits: exact in bf16.
          ASSERT_EQ(back(i), ValueOf(codes[static_cast<size_t>(i + shift)], format) / 4);
        }
        ASSERT_TRUE(back.GuardIntact());
      }
    }
  });
}

TEST(Fp8, AmaxKeepsNanAndInfinity) {
  EachVariant([](SimdLevel) {
    Buffer<BFloat16> x(1000);
    x.Fill(3);
    x[400] = ToBFloat16(-testing::kInf);
    EXPECT_EQ(AmaxCpu(1000, {x.get(), DType::kBFloat16}, SerialFor), testing::kInf);
    x[999] = ToBFloat16(testing::kNan);
    EXPECT_TRUE(std::isnan(AmaxCpu(1000, {x.get(), DType::kBFloat16}, SerialFor)));
    EXPECT_EQ(AmaxCpu(0, {x.get(), DType::kBFloat16}, SerialFor), 0.0F);
  });
}

TEST(Fp8, ScaleTakesTheLargestValueToTheFormatsLargest) {
  EXPECT_EQ(Fp8Scale(2.0F, Fp8Format::kE4m3), 224.0F);
  EXPECT_EQ(Fp8Scale(2.0F, Fp8Format::kE5m2), 28672.0F);
  for (const float unusable : {0.0F, -1.0F, testing::kInf, testing::kNan, 1e-40F}) {
    EXPECT_EQ(Fp8Scale(unusable, Fp8Format::kE5m2), 1.0F) << unusable;
  }
}

TEST(Fp8, AScaleIsThatOfTheLargestMagnitude) {
  for (const Fp8Format format : {Fp8Format::kE4m3, Fp8Format::kE5m2}) {
    for (const float largest : {0.0F, 3.0F, 1e-44F, testing::kInf, testing::kNan}) {
      testing::Buffer<float> x(5000);
      for (int64_t i = 0; i < x.size(); ++i) {
        x[i] = 0;
      }
      x[4321] = -largest;
      float scale = -1;
      float inverse = -1;
      Fp8ScaleCpu({.n = x.size(),
                   .format = format,
                   .src = {x.get(), DType::kFloat32},
                   .scale = &scale,
                   .inverse = &inverse},
                  testing::Split{3, 1});
      EXPECT_EQ(scale, largest == 3.0F ? Fp8Largest(format) / 3 : 1) << largest;
      if (std::isfinite(largest)) {
        EXPECT_EQ(inverse, 1 / scale) << largest;
      } else {
        EXPECT_TRUE(std::isnan(inverse)) << "casts saturate, and nothing else would tell";
      }
    }
  }
}

TEST(Fp8, TransposesWhatTheCastGives) {
  EachVariant([](SimdLevel) {
    for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 1}, {1, 200}, {200, 1}, {64, 64}, {63, 65}, {130, 257}, {0, 5}}) {
      Buffer<BFloat16> x(rows * columns);
      x.Fill(5, 100.0F);
      const auto size = static_cast<size_t>(rows * columns);
      std::vector<uint8_t> cast(size);
      std::vector<uint8_t> straight(size + 1, 0xaa);
      std::vector<uint8_t> transposed(size + 1, 0xaa);
      const ConstFlat src{x.get(), DType::kBFloat16};
      CastToFp8Cpu({.n = rows * columns, .src = src, .dst = cast.data()}, 3, SerialFor);
      TransposeToFp8Cpu({.rows = rows,
                         .columns = columns,
                         .src = src,
                         .dst = straight.data(),
                         .transposed = transposed.data()},
                        3, testing::Split{2, 1});
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < columns; ++c) {
          const uint8_t code = cast[static_cast<size_t>(r * columns + c)];
          ASSERT_EQ(straight[static_cast<size_t>(r * columns + c)], code);
          ASSERT_EQ(transposed[static_cast<size_t>(c * rows + r)], code);
        }
      }
      ASSERT_EQ(straight[size], 0xaa);
      ASSERT_EQ(transposed[size], 0xaa);
    }
  });
}

// Compares with the scale's definition and the nearest code of each product.
TEST(Fp8, RowsHaveScalesOfTheirOwn) {
  EachVariant([](SimdLevel) {
    for (const Fp8Format format : kFormats) {
      for (const int64_t columns : {1, 7, 64, 257}) {
        constexpr int64_t kRows = 5;
        Buffer<float> x(kRows * columns);
        x.Fill(6, 100.0F);
        for (int64_t c = 0; c < columns; ++c) {
          x.get()[columns + c] = 0;            // Row 1 holds nothing,
          x.get()[2 * columns + c] *= 1e-30F;  // row 2 little,
        }
        x.get()[3 * columns] = testing::kInf;      // row 3 what is not finite,
        x.get()[5 * columns - 1] = testing::kNan;  // as row 4.
        std::vector<uint8_t> codes(static_cast<size_t>(kRows * columns) + 1, 0xaa);
        std::vector<float> inverse(kRows + 1, -1);
        RowsToFp8Cpu({.rows = kRows,
                      .columns = columns,
                      .format = format,
                      .src = {x.get(), DType::kFloat32},
                      .dst = codes.data(),
                      .inverse = inverse.data()},
                     testing::Split{2, 1});
        for (int64_t row = 0; row < 3; ++row) {
          float amax = 0;
          for (int64_t c = 0; c < columns; ++c) {
            amax = std::max(amax, std::fabs(x(row * columns + c)));
          }
          const float scale = Fp8Scale(amax, format);
          ASSERT_EQ(inverse[static_cast<size_t>(row)], 1 / scale);
          for (int64_t c = 0; c < columns; ++c) {
            const int64_t i = row * columns + c;
            ASSERT_EQ(codes[static_cast<size_t>(i)], NearestCode(double{x(i) * scale}, format))
                << i;
          }
        }
        ASSERT_TRUE(std::isnan(inverse[3]) && std::isnan(inverse[4])) << "a cast saturates";
        ASSERT_EQ(codes.back(), 0xaa);
        ASSERT_EQ(inverse.back(), -1);
      }
    }
  });
}

}  // namespace
}  // namespace dtrain::kernels::fp8_test
