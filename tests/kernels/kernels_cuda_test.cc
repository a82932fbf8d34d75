// The CUDA twins against the CPU kernels, which have been tested against fp64: the same bits where
// the headers promise them, stated tolerances elsewhere. Needs a GPU; without one the program says
// SKIPPED and ends with 77, which ctest reports as skipped, not passed.
#include <cuda_runtime.h>

#include <cstdio>

#include "kernels/adagrad.h"
#include "kernels/adamw.h"
#include "kernels/flat.h"
#include "kernels/grad_norm.h"
#include "kernels/lion.h"
#include "kernels/rmsnorm.h"
#include "kernels/sgd.h"
#include "kernels/swiglu.h"
#include "tests/kernels/kernel_testing.h"

namespace dtrain::kernels {
namespace {

using testing::Buffer;

#define ASSERT_CUDA(call) ASSERT_EQ(call, cudaSuccess)

// Device copies of host buffers. A shift of a few elements takes the way without 16-byte loads.
template <class T>
class Device {
 public:
  explicit Device(const Buffer<T>& host, int64_t shift = 0) : size_(host.size()), shift_(shift) {
    Check(cudaMalloc(&data_, static_cast<size_t>(size_ + shift_ + 1) * sizeof(T)));
    Check(cudaMemcpy(get(), host.get(), Bytes(), cudaMemcpyHostToDevice));
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device() { cudaFree(data_); }

  T* get() const { return static_cast<T*>(data_) + shift_; }
  // What the device holds after `stream` is done.
  Buffer<T> Read(cudaStream_t stream) const {
    Buffer<T> host(size_);
    Check(cudaStreamSynchronize(stream));
    Check(cudaMemcpy(host.get(), get(), Bytes(), cudaMemcpyDeviceToHost));
    return host;
  }

 private:
  static void Check(cudaError_t error) {
    ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error);
  }
  size_t Bytes() const { return static_cast<size_t>(size_) * sizeof(T); }
  int64_t size_;
  int64_t shift_;
  void* data_ = nullptr;
};

class Cuda : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  void TearDown() override { ASSERT_CUDA(cudaStreamDestroy(stream_)); }
  cudaStream_t stream_ = nullptr;
};

// Every element differs by at most `tolerance` relative to the largest magnitude of the buffer.
template <class T>
void ExpectClose(const Buffer<T>& got, const Buffer<T>& expected, double tolerance) {
  double largest = 0;
  for (int64_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::fabs(double{expected(i)}));
  }
  for (int64_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(got(i), expected(i), tolerance * largest) << i;
  }
}

template <class G>
void TestAdamW(cudaStream_t stream, int64_t n, int64_t shift) {
  const AdamWOptions options{
      .lr = 3e-3, .beta2 = 0.95, .weight_decay = 0.1, .grad_scale = 0.4, .step = 7};
  Buffer<float> p(n), m(n), v(n);
  Buffer<G> g(n);
  Buffer<BFloat16> out(n);
  p.Fill(1);
  m.Fill(2, 0.1F);
  v.Fill(3, 0.01F, 0.0101F);
  g.Fill(4);
  Device<float> dp(p, shift), dm(m, shift), dv(v, shift);
  Device<G> dg(g, shift);
  Device<BFloat16> dout(out, shift);
  const AdamWStepScalars scalars = MakeAdamWStepScalars(options);
  AdamWStepScalars* device_scalars = nullptr;
  ASSERT_CUDA(cudaMalloc(&device_scalars, sizeof(scalars)));
  ASSERT_CUDA(cudaMemcpy(device_scalars, &scalars, sizeof(scalars), cudaMemcpyHostToDevice));
  if constexpr (sizeof(G) == 4) {
    AdamWCpu(n, p.get(), g.get(), m.get(), v.get(), out.get(), options, SerialFor);
    ASSERT_TRUE(
        AdamWCuda(n, dp.get(), dg.get(), dm.get(), dv.get(), dout.get(), device_scalars, stream)
            .ok());
  } else {
    AdamWCpuBf16Grad(n, p.get(), g.get(), m.get(), v.get(), out.get(), options, SerialFor);
    ASSERT_TRUE(AdamWCudaBf16Grad(n, dp.get(), dg.get(), dm.get(), dv.get(), dout.get(),
                                  device_scalars, stream)
                    .ok());
  }
  EXPECT_TRUE(dp.Read(stream).SameBits(p));
  EXPECT_TRUE(dm.Read(stream).SameBits(m));
  EXPECT_TRUE(dv.Read(stream).SameBits(v));
  EXPECT_TRUE(dout.Read(stream).SameBits(out));
  cudaFree(device_scalars);
}

TEST_F(Cuda, AdamWGivesTheBitsOfTheCpu) {
  for (const int64_t n : testing::OddSizes()) {
    for (const int64_t shift : {0, 1}) {
      SCOPED_TRACE(n);
      TestAdamW<float>(stream_, n, shift);
      TestAdamW<BFloat16>(stream_, n, shift);
    }
  }
}

// `cpu` and `cuda` update the buffers that they are given with the same options.
template <class S, class Scalars, class Cpu, class Gpu>
void TestOneState(cudaStream_t stream, int64_t n, int64_t shift, const Scalars& scalars, Cpu cpu,
                  Gpu cuda) {
  const DType type = sizeof(S) == 4 ? DType::kFloat32 : DType::kBFloat16;
  Buffer<float> p(n), g(n);
  Buffer<S> s(n);
  Buffer<BFloat16> out(n);
  p.Fill(1);
  g.Fill(2);
  s.Fill(3, 0.01F, 0.0101F);
  Device<float> dp(p, shift), dg(g, shift);
  Device<S> ds(s, shift);
  Device<BFloat16> dout(out, shift);
  Scalars* device_scalars = nullptr;
  ASSERT_CUDA(cudaMalloc(&device_scalars, sizeof(scalars)));
  ASSERT_CUDA(cudaMemcpy(device_scalars, &scalars, sizeof(scalars), cudaMemcpyHostToDevice));
  cpu(n, p.get(), g.get(), MutableFlat{s.get(), type}, out.get());
  ASSERT_TRUE(
      cuda(n, dp.get(), dg.get(), MutableFlat{ds.get(), type}, dout.get(), device_scalars, stream)
          .ok());
  EXPECT_TRUE(dp.Read(stream).SameBits(p));
  EXPECT_TRUE(ds.Read(stream).SameBits(s));
  EXPECT_TRUE(dout.Read(stream).SameBits(out));
  cudaFree(device_scalars);
}

template <class S>
void TestOneStateOptimizers(cudaStream_t stream, int64_t n, int64_t shift) {
  const SgdOptions sgd{.momentum = 0.9, .weight_decay = 0.1, .nesterov = true, .step = 2};
  TestOneState<S>(
      stream, n, shift, MakeSgdStepScalars(sgd),
      [&](auto... buffers) { SgdCpu(buffers..., sgd, SerialFor); }, SgdCuda);
  const LionOptions lion{.weight_decay = 0.1, .grad_limit = 0.5};
  TestOneState<S>(
      stream, n, shift, MakeLionStepScalars(lion),
      [&](auto... buffers) { LionCpu(buffers..., lion, SerialFor); }, LionCuda);
  const AdagradOptions adagrad{.lr_decay = 0.1, .weight_decay = 0.1, .step = 3};
  TestOneState<S>(
      stream, n, shift, MakeAdagradStepScalars(adagrad),
      [&](auto... buffers) { AdagradCpu(buffers..., adagrad, SerialFor); }, AdagradCuda);
}

TEST_F(Cuda, OptimizersWithOneStateGiveTheBitsOfTheCpu) {
  for (const int64_t n : testing::OddSizes()) {
    for (const int64_t shift : {0, 1}) {
      SCOPED_TRACE(n);
      TestOneStateOptimizers<float>(stream_, n, shift);
      TestOneStateOptimizers<BFloat16>(stream_, n, shift);
    }
  }
}

TEST_F(Cuda, ClipSetsTheScaleOrSkipsTheStepOnTheDevice) {
  for (const double square_sum : {16.0, 0.25, std::numeric_limits<double>::infinity(),
                                  std::numeric_limits<double>::quiet_NaN()}) {
    AdamWStepScalars scalars = MakeAdamWStepScalars({});
    double* device_sum = nullptr;
    AdamWStepScalars* device_scalars = nullptr;
    ASSERT_CUDA(cudaMalloc(&device_sum, sizeof(double)));
    ASSERT_CUDA(cudaMalloc(&device_scalars, sizeof(scalars)));
    ASSERT_CUDA(cudaMemcpy(device_sum, &square_sum, sizeof(double), cudaMemcpyHostToDevice));
    ASSERT_CUDA(cudaMemcpy(device_scalars, &scalars, sizeof(scalars), cudaMemcpyHostToDevice));
    ASSERT_TRUE(AdamWSetClipCuda(device_sum, 0.5, 1.0, 1, device_scalars, stream_).ok());
    ASSERT_CUDA(cudaStreamSynchronize(stream_));
    ASSERT_CUDA(cudaMemcpy(&scalars, device_scalars, sizeof(scalars), cudaMemcpyDeviceToHost));
    EXPECT_EQ(scalars.skip, std::isfinite(square_sum) ? 0 : 1);
    if (std::isfinite(square_sum)) {
      EXPECT_EQ(scalars.grad_scale,
                static_cast<float>(0.5 * ClipFactor(0.5 * std::sqrt(square_sum), 1.0)));
    }
    cudaFree(device_sum);
    cudaFree(device_scalars);
  }
}

template <class T>
void TestNorm(cudaStream_t stream, int64_t n, int64_t offset, int64_t shift) {
  Buffer<T> x(n);
  x.Fill(5, 3.0F);
  const int64_t blocks = NormBlocks(offset, n);
  Buffer<T> host = x;
  std::vector<double> scratch(static_cast<size_t>(blocks));
  const double expected = SquareSumCpu(x.get(), offset, n, scratch.data(), SerialFor).sum;
  Device<T> device(x, shift);
  double* sums = nullptr;
  ASSERT_CUDA(cudaMalloc(&sums, static_cast<size_t>(blocks + 1) * sizeof(double)));
  double first = 0;
  for (int repeat = 0; repeat < 2; ++repeat) {
    double got = -1;
    ASSERT_TRUE(BlockSquareSumsCuda(device.get(), offset, n, sums, stream).ok());
    ASSERT_TRUE(TreeSumCuda(sums, blocks, sums + blocks, stream).ok());
    ASSERT_CUDA(cudaStreamSynchronize(stream));
    ASSERT_CUDA(cudaMemcpy(&got, sums + blocks, sizeof(double), cudaMemcpyDeviceToHost));
    // Both round in fp64, in different orders within a block.
    ASSERT_NEAR(got, expected, 1e-12 * expected) << n;
    ASSERT_TRUE(repeat == 0 || got == first) << n;
    first = got;
  }
  cudaFree(sums);
}

TEST_F(Cuda, SquareSumsAgreeAndRepeat) {
  for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{4095}, int64_t{8193}, int64_t{1} << 20,
                          (int64_t{9} << 20) + 5}) {
    for (const int64_t shift : {0, 1}) {
      TestNorm<float>(stream_, n, 0, shift);
      TestNorm<BFloat16>(stream_, n, 100, shift);
    }
  }
}

TEST_F(Cuda, TreeSumGivesTheBitsOfTheCpu) {
  for (const int64_t count : {1, 2, 3, 1000, 2048, 2049, 5000, 100'001}) {
    std::vector<double> sums(static_cast<size_t>(count));
    SplitMix64 random(3);
    for (double& sum : sums) {
      sum = random.Uniform();
    }
    double* device = nullptr;
    const size_t bytes = sums.size() * sizeof(double);
    ASSERT_CUDA(cudaMalloc(&device, bytes + sizeof(double)));
    ASSERT_CUDA(cudaMemcpy(device, sums.data(), bytes, cudaMemcpyHostToDevice));
    ASSERT_TRUE(TreeSumCuda(device, count, device + count, stream_).ok());
    ASSERT_CUDA(cudaStreamSynchronize(stream_));
    double got = 0;
    ASSERT_CUDA(cudaMemcpy(&got, device + count, sizeof(double), cudaMemcpyDeviceToHost));
    EXPECT_EQ(got, TreeSum(sums.data(), count)) << count;
    cudaFree(device);
  }
}

template <class From, class To>
void TestFlat(cudaStream_t stream, DType from, DType to, int64_t shift) {
  const int64_t n = 70'001;
  Buffer<From> src(n);
  src.Fill(6, 70'000.0F);  // Above fp16's largest value too.
  Buffer<To> dst(n);
  dst.Fill(7, 100.0F);
  const ConstFlat in{src.get(), from};
  const MutableFlat out{dst.get(), to};
  Device<From> device_src(src, shift);
  Device<To> device_dst(dst, shift);
  const ConstFlat device_in{device_src.get(), from};
  const MutableFlat device_out{device_dst.get(), to};
  AccumulateCpu(n, in, out, SerialFor);
  ASSERT_TRUE(AccumulateCuda(n, device_in, device_out, stream).ok());
  EXPECT_TRUE(device_dst.Read(stream).SameBits(dst));
  ScaleCpu(n, in, out, 0.3F, SerialFor);
  ASSERT_TRUE(ScaleCuda(n, device_in, device_out, 0.3F, stream).ok());
  EXPECT_TRUE(device_dst.Read(stream).SameBits(dst));
  CopyCpu(n, in, out, SerialFor);
  ASSERT_TRUE(CopyCuda(n, device_in, device_out, stream).ok());
  EXPECT_TRUE(device_dst.Read(stream).SameBits(dst));
  FillCpu(n, 1.005F, out, SerialFor);
  ASSERT_TRUE(FillCuda(n, 1.005F, device_out, stream).ok());
  EXPECT_TRUE(device_dst.Read(stream).SameBits(dst));
}

TEST_F(Cuda, FlatOperationsGiveTheBitsOfTheCpu) {
  constexpr DType kF = DType::kFloat32;
  constexpr DType kB = DType::kBFloat16;
  constexpr DType kH = DType::kFloat16;
  for (const int64_t shift : {0, 1}) {
    TestFlat<float, float>(stream_, kF, kF, shift);
    TestFlat<float, BFloat16>(stream_, kF, kB, shift);
    TestFlat<float, Float16>(stream_, kF, kH, shift);
    TestFlat<BFloat16, float>(stream_, kB, kF, shift);
    TestFlat<BFloat16, BFloat16>(stream_, kB, kB, shift);
    TestFlat<BFloat16, Float16>(stream_, kB, kH, shift);
    TestFlat<Float16, float>(stream_, kH, kF, shift);
    TestFlat<Float16, BFloat16>(stream_, kH, kB, shift);
    TestFlat<Float16, Float16>(stream_, kH, kH, shift);
  }
}

template <class T>
void TestSwiGlu(cudaStream_t stream, int64_t n, int64_t shift) {
  Buffer<T> gate(n), up(n), dout(n), out(n), dgate(n), dup(n);
  gate.Fill(1, 100.0F);
  up.Fill(2);
  dout.Fill(3);
  Device<T> g(gate, shift), u(up, shift), d(dout, shift), o(out, shift), dg(dgate, shift),
      du(dup, shift);
  SwiGluForwardCpu(
      SwiGluForwardArgs<T>{.count = n, .gate = gate.get(), .up = up.get(), .out = out.get()},
      SerialFor);
  SwiGluBackwardCpu(SwiGluBackwardArgs<T>{.count = n,
                                          .gate = gate.get(),
                                          .up = up.get(),
                                          .dout = dout.get(),
                                          .dgate = dgate.get(),
                                          .dup = dup.get()},
                    SerialFor);
  ASSERT_TRUE(
      SwiGluForwardCuda(
          SwiGluForwardArgs<T>{.count = n, .gate = g.get(), .up = u.get(), .out = o.get()}, stream)
          .ok());
  ASSERT_TRUE(SwiGluBackwardCuda(SwiGluBackwardArgs<T>{.count = n,
                                                       .gate = g.get(),
                                                       .up = u.get(),
                                                       .dout = d.get(),
                                                       .dgate = dg.get(),
                                                       .dup = du.get()},
                                 stream)
                  .ok());
  EXPECT_TRUE(o.Read(stream).SameBits(out));
  EXPECT_TRUE(dg.Read(stream).SameBits(dgate));
  EXPECT_TRUE(du.Read(stream).SameBits(dup));
}

TEST_F(Cuda, SwiGluGivesTheBitsOfTheCpu) {
  for (const int64_t n : testing::OddSizes()) {
    for (const int64_t shift : {0, 1}) {
      SCOPED_TRACE(n);
      TestSwiGlu<float>(stream_, n, shift);
      TestSwiGlu<BFloat16>(stream_, n, shift);
    }
  }
}

template <class T>
void TestRmsNorm(cudaStream_t stream, int64_t tokens, int64_t hidden, bool residual,
                 int64_t shift) {
  const int64_t n = tokens * hidden;
  Buffer<T> x(n), r(n), sum(n), y(n), dy(n), dsum(n), dh(n), weight(hidden), dweight(hidden);
  Buffer<float> rstd(tokens), workspace(RmsNormWorkspaceFloats(tokens, hidden));
  const Buffer<float> device_workspace(RmsNormWorkspaceFloatsCuda(tokens, hidden));
  x.Fill(1, 2.0F);
  r.Fill(2);
  weight.Fill(3, 0.5F, 1.0F);
  dy.Fill(4);
  dsum.Fill(5);
  Device<T> gx(x, shift), gr(r, shift), gsum(sum, shift), gy(y, shift), gdy(dy, shift),
      gdsum(dsum, shift), gdh(dh, shift), gweight(weight, shift), gdweight(dweight, shift);
  Device<float> grstd(rstd), gworkspace(device_workspace);
  const auto forward = [&](T* a, T* b, T* w, T* s, T* out, float* rs) {
    return RmsNormForwardArgs<T>{.tokens = tokens,
                                 .hidden = hidden,
                                 .x = a,
                                 .residual = residual ? b : nullptr,
                                 .weight = w,
                                 .sum = residual ? s : nullptr,
                                 .y = out,
                                 .rstd = rs};
  };
  RmsNormForwardCpu(forward(x.get(), r.get(), weight.get(), sum.get(), y.get(), rstd.get()),
                    SerialFor);
  RmsNormBackwardCpu(RmsNormBackwardArgs<T>{.tokens = tokens,
                                            .hidden = hidden,
                                            .h = residual ? sum.get() : x.get(),
                                            .weight = weight.get(),
                                            .rstd = rstd.get(),
                                            .dy = dy.get(),
                                            .dsum = residual ? dsum.get() : nullptr,
                                            .dh = dh.get(),
                                            .dweight = dweight.get(),
                                            .workspace = workspace.get()},
                     SerialFor);
  ASSERT_TRUE(
      RmsNormForwardCuda(
          forward(gx.get(), gr.get(), gweight.get(), gsum.get(), gy.get(), grstd.get()), stream)
          .ok());
  const RmsNormBackwardArgs<T> backward{.tokens = tokens,
                                        .hidden = hidden,
                                        .h = residual ? gsum.get() : gx.get(),
                                        .weight = gweight.get(),
                                        .rstd = grstd.get(),
                                        .dy = gdy.get(),
                                        .dsum = residual ? gdsum.get() : nullptr,
                                        .dh = gdh.get(),
                                        .dweight = gdweight.get(),
                                        .workspace = gworkspace.get()};
  ASSERT_TRUE(RmsNormBackwardCuda(backward, stream).ok());
  // fp32 sums in another order: 1e-5; in bf16 that may flip one rounding, 2^-8 of the value.
  const double tolerance = sizeof(T) == 4 ? 1e-5 : 0x1p-8;
  ExpectClose(grstd.Read(stream), rstd, 1e-5);
  ExpectClose(gy.Read(stream), y, tolerance);
  if (residual) {
    EXPECT_TRUE(gsum.Read(stream).SameBits(sum));
  }
  ExpectClose(gdh.Read(stream), dh, tolerance);
  const Buffer<T> first = gdweight.Read(stream);
  ExpectClose(first, dweight, tolerance);
  ASSERT_TRUE(RmsNormBackwardCuda(backward, stream).ok());
  EXPECT_TRUE(gdweight.Read(stream).SameBits(first)) << "not the same bits on repeat";
}

TEST_F(Cuda, RmsNormAgreesAndRepeats) {
  for (const int64_t hidden : {1, 17, 64, 768, 1000, 1024, 2048, 4096, 8192, 16384, 20000}) {
    for (const int64_t tokens : {1, 5, 700}) {
      for (const bool residual : {false, true}) {
        for (const int64_t shift : {0, 1}) {
          SCOPED_TRACE(::testing::Message() << tokens << " x " << hidden << " shift " << shift);
          TestRmsNorm<float>(stream_, tokens, hidden, residual, shift);
          TestRmsNorm<BFloat16>(stream_, tokens, hidden, residual, shift);
        }
      }
    }
  }
}

}  // namespace
}  // namespace dtrain::kernels

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess || devices == 0) {
    std::printf("SKIPPED: no CUDA device (%s); no CUDA kernel was tested\n",
                error == cudaSuccess ? "count 0" : cudaGetErrorString(error));
    return 77;
  }
  return RUN_ALL_TESTS();
}
