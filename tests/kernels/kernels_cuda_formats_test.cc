// The CUDA twins of the narrow formats (int8 blocks, FP8) against the CPU kernels: the same bits.
// On a GPU (cuda_main.cc) or an emulated one (emulated_main.cc).
#include "kernels/quantize/fp8.h"
#include "kernels/quantize/int8_blocks.h"
#include "tests/device_emulation/emulated.h"
#include "tests/kernels/cuda_testing.h"

namespace dtrain::kernels::kernels_cuda_formats_test {
namespace {

using testing::Buffer;
using testing::Cuda;
using testing::Device;
using testing::DeviceStruct;
using testing::kDTypeOf;
using testing::kInf;
using testing::kNan;

// A NaN's payload is nobody's promise.
void ExpectSameScales(const Buffer<float>& got, const Buffer<float>& expected) {
  for (int64_t i = 0; i < expected.size(); ++i) {
    ASSERT_TRUE(std::isnan(expected(i)) ? std::isnan(got(i)) : got(i) == expected(i))
        << "scale " << i << ": " << got(i) << " for " << expected(i);
  }
}

// `bad`: a block with an infinity, one of zeros.
template <class T>
void TestInt8(cudaStream_t stream, int64_t n, int64_t block, int64_t shift, bool bad) {
  Buffer<T> src(n), back(n);
  src.Fill(1, 3.0F);
  for (int64_t i = 0; bad && i < n; ++i) {
    if (i / block == 1) {
      testing::Assign(src[i], 0);
    }
  }
  if (bad && n > 0) {
    testing::Assign(src[n / 2], kInf);
  }
  back.Fill(2);
  Buffer<int8_t> values(n);
  Buffer<float> scales(Int8Blocks(n, block)), error(n);
  Device<T> gsrc(src, shift), gback(back, shift);
  Device<int8_t> gvalues(values, shift);
  Device<float> gscales(scales), gerror(error, shift);
  QuantizeInt8Cpu({.n = n,
                   .block = block,
                   .src = {src.get(), kDTypeOf<T>},
                   .values = values.get(),
                   .scales = scales.get(),
                   .error = bad ? nullptr : error.get()},
                  SerialFor);
  for (int repeat = 0; repeat < 2; ++repeat) {
    ASSERT_TRUE(QuantizeInt8Cuda({.n = n,
                                  .block = block,
                                  .src = {gsrc.get(), kDTypeOf<T>},
                                  .values = gvalues.get(),
                                  .scales = gscales.get(),
                                  .error = bad ? nullptr : gerror.get()},
                                 stream)
                    .ok());
    ExpectSameScales(gscales.Read(stream), scales);
    EXPECT_TRUE(gvalues.Read(stream).SameBits(values));
    EXPECT_TRUE(gerror.Read(stream).SameBits(error));
  }
  for (const bool accumulate : {false, true}) {
    DequantizeInt8Cpu({.n = n,
                       .block = block,
                       .values = values.get(),
                       .scales = scales.get(),
                       .dst = {back.get(), kDTypeOf<T>},
                       .accumulate = accumulate},
                      SerialFor);
    ASSERT_TRUE(DequantizeInt8Cuda({.n = n,
                                    .block = block,
                                    .values = gvalues.get(),
                                    .scales = gscales.get(),
                                    .dst = {gback.get(), kDTypeOf<T>},
                                    .accumulate = accumulate},
                                   stream)
                    .ok());
    const Buffer<T> got = gback.Read(stream);
    if (!bad) {
      EXPECT_TRUE(got.SameBits(back)) << accumulate;
      continue;
    }
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_TRUE(std::isnan(back(i)) ? std::isnan(got(i)) : got(i) == back(i)) << i;
    }
  }
}

TEST_F(Cuda, Int8BlocksGiveTheBitsOfTheCpu) {
  for (const int64_t n : testing::OddSizes()) {
    for (const int64_t block : {1, 16, 100, 256, 4096}) {
      if (emulation::emulated && block == 1 && n > 4097) {
        continue;  // A team of threads each, which is slow there.
      }
      for (const int64_t shift : {0, 1}) {
        SCOPED_TRACE(::testing::Message() << n << " by " << block << " shift " << shift);
        TestInt8<float>(stream_, n, block, shift, false);
        TestInt8<BFloat16>(stream_, n, block, shift, false);
        TestInt8<float>(stream_, n, block, shift, true);
        TestInt8<BFloat16>(stream_, n, block, shift, true);
      }
    }
  }
}

// Everything between a subnormal code and saturation; `special` adds NaN and infinity.
template <class T>
Buffer<T> Fp8Source(int64_t n, bool special) {
  Buffer<T> src(n);
  SplitMix64 random(3);
  for (int64_t i = 0; i < n; ++i) {
    const double magnitude = std::exp2(40 * random.Uniform() - 20);
    testing::Assign(src[i], static_cast<float>(random.Uniform() < 0.5 ? magnitude : -magnitude));
  }
  if (special && n > 4) {
    testing::Assign(src[1], kNan);
    testing::Assign(src[2], -kInf);
    testing::Assign(src[3], -0.0F);
  }
  return src;
}

// Twice with the same progress, which a launch leaves as it found it.
template <class T>
void TestFp8Scale(cudaStream_t stream, Fp8Format format, const Buffer<T>& src,
                  const Device<T>& gsrc) {
  float scale = -1;
  float inverse = -1;
  const Fp8ScaleArgs args{.n = src.size(),
                          .format = format,
                          .src = {src.get(), kDTypeOf<T>},
                          .scale = &scale,
                          .inverse = &inverse};
  Fp8ScaleCpu(args, SerialFor);
  const DeviceStruct<Fp8ScaleProgress> progress({});
  for (int repeat = 0; repeat < 2; ++repeat) {
    const DeviceStruct<float> gscale(-1.0F), ginverse(-1.0F);
    Fp8ScaleArgs on_device = args;
    on_device.src.data = gsrc.get();
    on_device.scale = gscale.get();
    on_device.inverse = ginverse.get();
    on_device.progress = progress.get();
    ASSERT_TRUE(Fp8ScaleCuda(on_device, stream).ok());
    EXPECT_EQ(gscale.Read(stream), scale) << "repeat " << repeat;
    EXPECT_TRUE(std::isnan(inverse) ? std::isnan(ginverse.Read(stream))
                                    : ginverse.Read(stream) == inverse)
        << ginverse.Read(stream) << " for " << inverse << ", repeat " << repeat;
    EXPECT_EQ(progress.Read(stream).most, 0U);
    EXPECT_EQ(progress.Read(stream).blocks, 0U);
  }
}

template <class T>
void TestFp8(cudaStream_t stream, Fp8Format format, int64_t n, int64_t shift, bool special) {
  constexpr float kScale = 0.37F;
  const Buffer<T> src = Fp8Source<T>(n, special);
  Buffer<uint8_t> codes(n);
  Buffer<T> back(n);
  Device<T> gsrc(src, shift), gback(back, shift);
  Device<uint8_t> gcodes(codes, shift);
  const DeviceStruct<float> scale(kScale);
  const DeviceStruct<float> gamax(-1.0F);
  float amax = -1;
  CastToFp8Cpu({.n = n,
                .format = format,
                .src = {src.get(), kDTypeOf<T>},
                .dst = codes.get(),
                .amax = &amax},
               kScale, SerialFor);
  const CastToFp8Args to{.n = n,
                         .format = format,
                         .src = {gsrc.get(), kDTypeOf<T>},
                         .dst = gcodes.get(),
                         .amax = gamax.get()};
  const auto same = [](float got, float expected) {
    return std::isnan(expected) ? std::isnan(got) : got == expected;
  };
  for (int repeat = 0; repeat < 2; ++repeat) {
    ASSERT_TRUE(CastToFp8Cuda(to, scale.get(), stream).ok());
    EXPECT_TRUE(gcodes.Read(stream).SameBits(codes));
    EXPECT_TRUE(same(gamax.Read(stream), amax)) << gamax.Read(stream) << " for " << amax;
  }
  TestFp8Scale(stream, format, src, gsrc);
  CastFromFp8Cpu({.n = n, .format = format, .src = codes.get(), .dst = {back.get(), kDTypeOf<T>}},
                 kScale, SerialFor);
  ASSERT_TRUE(
      CastFromFp8Cuda(
          {.n = n, .format = format, .src = gcodes.get(), .dst = {gback.get(), kDTypeOf<T>}},
          scale.get(), stream)
          .ok());
  const Buffer<T> got = gback.Read(stream);
  for (int64_t i = 0; i < n; ++i) {
    ASSERT_TRUE(same(got(i), back(i))) << i;
  }
}

TEST_F(Cuda, Fp8CastsGiveTheBitsOfTheCpu) {
  for (const Fp8Format format : {Fp8Format::kE4m3, Fp8Format::kE5m2}) {
    for (const int64_t n : testing::OddSizes()) {
      for (const int64_t shift : {0, 1}) {
        for (const bool special : {false, true}) {
          SCOPED_TRACE(::testing::Message() << n << " shift " << shift);
          TestFp8<float>(stream_, format, n, shift, special);
          TestFp8<BFloat16>(stream_, format, n, shift, special);
        }
      }
    }
  }
}

template <class T>
void TestTranspose(cudaStream_t stream, Fp8Format format, int64_t rows, int64_t columns,
                   int64_t shift) {
  constexpr float kScale = 1.7F;
  const int64_t n = rows * columns;
  const Buffer<T> src = Fp8Source<T>(n, true);
  Buffer<uint8_t> dst(n), transposed(n);
  Device<T> gsrc(src, shift);
  Device<uint8_t> gdst(dst, shift), gtransposed(transposed, shift);
  const DeviceStruct<float> scale(kScale);
  const auto args = [&](const T* from, uint8_t* as_is, uint8_t* turned) {
    return TransposeToFp8Args{.rows = rows,
                              .columns = columns,
                              .format = format,
                              .src = {from, kDTypeOf<T>},
                              .dst = as_is,
                              .transposed = turned};
  };
  TransposeToFp8Cpu(args(src.get(), dst.get(), transposed.get()), kScale, SerialFor);
  for (const bool both : {true, false}) {
    ASSERT_TRUE(TransposeToFp8Cuda(args(gsrc.get(), both ? gdst.get() : nullptr, gtransposed.get()),
                                   scale.get(), stream)
                    .ok());
    EXPECT_TRUE(gdst.Read(stream).SameBits(dst)) << both;
    EXPECT_TRUE(gtransposed.Read(stream).SameBits(transposed)) << both;
  }
}

template <class T>
void TestRows(cudaStream_t stream, Fp8Format format, int64_t rows, int64_t columns, int64_t shift) {
  Buffer<T> src(rows * columns);
  src.Fill(12);
  Buffer<uint8_t> dst(rows * columns);
  Buffer<float> inverse(rows);
  Device<T> gsrc(src, shift);
  Device<uint8_t> gdst(dst, shift);
  Device<float> ginverse(inverse);
  const auto args = [&](const T* from, uint8_t* codes, float* factors) {
    return RowsToFp8Args{.rows = rows,
                         .columns = columns,
                         .format = format,
                         .src = {from, kDTypeOf<T>},
                         .dst = codes,
                         .inverse = factors};
  };
  RowsToFp8Cpu(args(src.get(), dst.get(), inverse.get()), SerialFor);
  ASSERT_TRUE(RowsToFp8Cuda(args(gsrc.get(), gdst.get(), ginverse.get()), stream).ok());
  EXPECT_TRUE(gdst.Read(stream).SameBits(dst));
  EXPECT_TRUE(ginverse.Read(stream).SameBits(inverse));
}

TEST_F(Cuda, Fp8RowsGiveTheBitsOfTheCpu) {
  for (const Fp8Format format : {Fp8Format::kE4m3, Fp8Format::kE5m2}) {
    for (const int64_t columns : {1, 16, 63, 128, 256, 272, 768, 2048, 2064, 4096, 5000}) {
      for (const int64_t shift : {0, 1}) {
        SCOPED_TRACE(::testing::Message() << columns << " wide, shift " << shift);
        TestRows<float>(stream_, format, 33, columns, shift);
        TestRows<BFloat16>(stream_, format, 33, columns, shift);
      }
    }
  }
}

TEST_F(Cuda, Fp8TransposesGiveTheBitsOfTheCpu) {
  for (const Fp8Format format : {Fp8Format::kE4m3, Fp8Format::kE5m2}) {
    for (const int64_t rows : {1, 16, 33, 64, 130}) {
      for (const int64_t columns : {1, 16, 63, 64, 257}) {
        for (const int64_t shift : {0, 1}) {
          SCOPED_TRACE(::testing::Message() << rows << " x " << columns << " shift " << shift);
          TestTranspose<float>(stream_, format, rows, columns, shift);
          TestTranspose<BFloat16>(stream_, format, rows, columns, shift);
        }
      }
    }
  }
}

}  // namespace
}  // namespace dtrain::kernels::kernels_cuda_formats_test
