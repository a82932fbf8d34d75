// Matrix products by cublasLt against sums in fp64. Needs a GPU (cuda_main.cc) and cublasLt;
// without the library the test says so.
#include <cstdio>
#include <vector>

#include "kernels/matmul/matmul.h"
#include "kernels/quantize/fp8.h"
#include "tests/kernels/cuda_testing.h"

namespace dtrain::kernels::kernels_cuda_matmul_test {
namespace {

using testing::Buffer;
using testing::Cuda;
using testing::Device;
using testing::DeviceStruct;

constexpr size_t kWorkspaceMax = size_t{4} << 20;

double Value(const Buffer<float>& x, int64_t i) { return double{x(i)}; }
double Value(const Buffer<BFloat16>& x, int64_t i) { return double{x(i)}; }

// op(a) op(b) [m, n] in fp64, with the sums of magnitudes that rounding errors are relative to.
struct Product {
  std::vector<double> values, magnitudes;
};
template <class T>
Product ProductOf(const MatmulProblem& p, const Buffer<T>& a, const Buffer<T>& b) {
  Product out;
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) {
      double sum = 0;
      double magnitude = 0;
      for (int64_t k = 0; k < p.k; ++k) {
        const double x = Value(a, p.transpose_a ? k * p.m + i : i * p.k + k);
        const double y = Value(b, p.transpose_b ? j * p.k + k : k * p.n + j);
        sum += x * y;
        magnitude += std::fabs(x * y);
      }
      out.values.push_back(sum);
      out.magnitudes.push_back(magnitude);
    }
  }
  return out;
}

double GeluTanh(double x) {
  return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

double GeluTanhSlope(double x) {
  const double t = std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t + x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x));
}

// How much an error of the tanh in it moves that slope.
double SlopeAgainstTanh(double x) {
  const double t = std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));
  return std::fabs(0.5 - x * t * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x));
}

// The problem is one that this cublasLt takes; the outputs' type is O.
template <class T, class O>
void TestMatmul(cudaStream_t stream, const MatmulProblem& p) {
  Buffer<T> a(p.m * p.k), b(p.k * p.n);
  Buffer<O> out(p.m * p.n), bias(p.n), gelu_input(p.m * p.n);
  a.Fill(1);
  b.Fill(2);
  out.Fill(3);
  bias.Fill(4);
  gelu_input.Fill(5);
  Device<T> ga(a), gb(b);
  Device<O> gout(out), gbias(bias), ginput(gelu_input);
  auto matmul = CreateMatmul(p, kWorkspaceMax);
  ASSERT_TRUE(matmul.ok()) << matmul.status();
  const Device<uint8_t> workspace(
      Buffer<uint8_t>(static_cast<int64_t>((*matmul)->workspace_bytes()) + 1));
  ASSERT_TRUE((*matmul)
                  ->Launch({.a = ga.get(),
                            .b = gb.get(),
                            .out = gout.get(),
                            .bias = gbias.get(),
                            .gelu_input = ginput.get()},
                           workspace.get(), stream)
                  .ok());
  const Buffer<O> kept = ginput.Read(stream);
  const Buffer<O> got = gout.Read(stream);
  const Product product = ProductOf(p, a, b);
  const bool with_bias =
      p.epilogue == MatmulEpilogue::kBias || p.epilogue == MatmulEpilogue::kGeluBias;
  const bool gelu = p.epilogue == MatmulEpilogue::kGelu || p.epilogue == MatmulEpilogue::kGeluBias;
  const bool backward = p.epilogue == MatmulEpilogue::kGeluBackward;
  for (int64_t i = 0; i < p.m * p.n; ++i) {
    double expected = product.values[static_cast<size_t>(i)];
    expected += with_bias ? double{bias(i % p.n)} : 0;
    expected += p.accumulate ? double{out(i)} : 0;
    const double rounding_of_input = sizeof(O) == 4 ? 0 : std::fabs(expected) * 0x1p-8;
    ASSERT_NEAR(kept(i), p.keep_gelu_input ? expected : double{gelu_input(i)},
                p.keep_gelu_input
                    ? product.magnitudes[static_cast<size_t>(i)] * 1e-5 + rounding_of_input + 1e-6
                    : 0)
        << i;
    expected = gelu       ? GeluTanh(expected)
               : backward ? expected * GeluTanhSlope(double{gelu_input(i)})
                          : expected;
    // fp32 sums of some hundred terms, never of TF32 factors; one rounding to O, but two with
    // GELU's slope, because cublasLt rounds the product first (seen on an H100); the hardware's
    // tanh is good to 1e-3, by which a slope moves the more the farther its input is from 0.
    const double rounding = sizeof(O) == 4 ? 0 : (backward ? 2 : 1) * std::fabs(expected) * 0x1p-8;
    const double magnitude = product.magnitudes[static_cast<size_t>(i)];
    const double of_tanh = gelu ? 1e-3
                           : backward
                               ? 1e-3 * (1 + magnitude * SlopeAgainstTanh(double{gelu_input(i)}))
                               : 1e-6;
    const double tolerance = magnitude * 1e-5 + rounding + of_tanh;
    ASSERT_NEAR(got(i), expected, tolerance) << i;
  }
}

class CudaMatmul : public Cuda {
 protected:
  void SetUp() override {
    Cuda::SetUp();
    const auto probe = CreateMatmul({.m = 16, .n = 16, .k = 16}, kWorkspaceMax);
    ASSERT_TRUE(probe.ok()) << probe.status();  // Every LibTorch of a GPU brings cublasLt.
  }
};

TEST_F(CudaMatmul, ProductsAgreeInEveryLayoutWithAndWithoutEpilogues) {
  for (const auto& [m, n, k] :
       std::vector<std::array<int64_t, 3>>{{16, 32, 48}, {64, 8, 200}, {40, 72, 24}}) {
    for (const bool transpose_a : {false, true}) {
      for (const bool transpose_b : {false, true}) {
        MatmulProblem p{
            .m = m, .n = n, .k = k, .transpose_a = transpose_a, .transpose_b = transpose_b};
        SCOPED_TRACE(::testing::Message()
                     << m << " " << n << " " << k << " " << transpose_a << transpose_b);
        for (const MatmulEpilogue epilogue :
             {MatmulEpilogue::kNone, MatmulEpilogue::kBias, MatmulEpilogue::kGelu,
              MatmulEpilogue::kGeluBias, MatmulEpilogue::kGeluBackward}) {
          p.epilogue = epilogue;
          TestMatmul<BFloat16, BFloat16>(stream_, p);
        }
        for (const MatmulEpilogue epilogue : {MatmulEpilogue::kGelu, MatmulEpilogue::kGeluBias}) {
          p.epilogue = epilogue;
          p.keep_gelu_input = true;
          TestMatmul<BFloat16, BFloat16>(stream_, p);
          p.keep_gelu_input = false;
        }
        p.epilogue = MatmulEpilogue::kNone;
        p.out = MatmulType::kFloat32;
        TestMatmul<BFloat16, float>(stream_, p);
        p.accumulate = true;
        TestMatmul<BFloat16, float>(stream_, p);
        p.a = p.b = MatmulType::kFloat32;
        TestMatmul<float, float>(stream_, p);
      }
    }
  }
}

TEST_F(CudaMatmul, Fp8ProductsAreThoseOfTheDecodedCodes) {
  constexpr int64_t kM = 32;
  constexpr int64_t kN = 48;
  constexpr int64_t kK = 64;
  cudaDeviceProp properties{};
  ASSERT_CUDA(cudaGetDeviceProperties(&properties, 0));
  if (10 * properties.major + properties.minor < 89) {
    GTEST_SKIP() << properties.name << " has no FP8 units";
  }
  for (const Fp8Format a_format : {Fp8Format::kE4m3, Fp8Format::kE5m2}) {
    MatmulProblem p{.m = kM, .n = kN, .k = kK, .transpose_b = true};
    p.a = a_format == Fp8Format::kE4m3 ? MatmulType::kE4m3 : MatmulType::kE5m2;
    p.b = MatmulType::kE4m3;
    const auto matmul = CreateMatmul(p, kWorkspaceMax);
    ASSERT_TRUE(matmul.ok()) << matmul.status();
    Buffer<float> a(kM * kK), b(kN * kK);
    a.Fill(1, 100.0F);
    b.Fill(2, 100.0F);
    Buffer<uint8_t> a_codes(kM * kK), b_codes(kN * kK);
    const auto encode = [](const Buffer<float>& x, Fp8Format format, Buffer<uint8_t>& codes) {
      CastToFp8Cpu(
          {.n = x.size(), .format = format, .src = {x.get(), DType::kFloat32}, .dst = codes.get()},
          1, SerialFor);
    };
    const auto decode = [](const Buffer<uint8_t>& codes, Fp8Format format, Buffer<float>& x) {
      CastFromFp8Cpu(
          {.n = x.size(), .format = format, .src = codes.get(), .dst = {x.get(), DType::kFloat32}},
          1, SerialFor);
    };
    encode(a, a_format, a_codes);
    encode(b, Fp8Format::kE4m3, b_codes);
    decode(a_codes, a_format, a);
    decode(b_codes, Fp8Format::kE4m3, b);
    Device<uint8_t> ga(a_codes), gb(b_codes);
    Device<BFloat16> gout(Buffer<BFloat16>(kM * kN));
    const DeviceStruct<float> a_scale(0.5F), b_scale(0.25F);
    const Device<uint8_t> workspace(
        Buffer<uint8_t>(static_cast<int64_t>((*matmul)->workspace_bytes()) + 1));
    ASSERT_TRUE((*matmul)
                    ->Launch({.a = ga.get(),
                              .b = gb.get(),
                              .out = gout.get(),
                              .a_scale = a_scale.get(),
                              .b_scale = b_scale.get()},
                             workspace.get(), stream_)
                    .ok());
    const Buffer<BFloat16> got = gout.Read(stream_);
    const Product product = ProductOf(p, a, b);
    for (int64_t i = 0; i < kM * kN; ++i) {
      const auto at = static_cast<size_t>(i);
      // The tensor cores keep 14 bits of an FP8 sum, and the result has 8.
      ASSERT_NEAR(
          got(i), 0.125 * product.values[at],
          0.125 * (std::fabs(product.values[at]) * 0x1p-8 + product.magnitudes[at] * 0x1p-12))
          << i;
    }
  }
}

}  // namespace
}  // namespace dtrain::kernels::kernels_cuda_matmul_test
