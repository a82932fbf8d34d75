// The CUDA twins against the CPU kernels, which have been tested against fp64: the same bits where
// the headers promise them, stated tolerances elsewhere. On a GPU (cuda_main.cc) or an emulated one
// (emulated_main.cc). Here: the element-wise optimizers, the gradient's norm and the flat
// operations; kernels_cuda_blocks_test.cc, _tokens_, _formats_, _updates_ and _matmul_test.cc have
// the rest.
#include <array>
#include <cmath>
#include <limits>

#include "kernels/flat.h"
#include "kernels/optimizer/adagrad.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/grad_norm.h"
#include "kernels/optimizer/lion.h"
#include "kernels/optimizer/sgd.h"
#include "kernels/optimizer/step_verdict.h"
#include "tests/kernels/cuda_testing.h"

namespace dtrain::kernels::kernels_cuda_test {
namespace {

using testing::Buffer;
using testing::Cuda;
using testing::Device;
using testing::DeviceStruct;

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
  ASSERT_CUDA(testing::CopyToDevice(device_scalars, &scalars, sizeof(scalars)));
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
  ASSERT_CUDA(testing::CopyToDevice(device_scalars, &scalars, sizeof(scalars)));
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

TEST_F(Cuda, AStepsVerdictSetsTheScalarsOfEveryGroup) {
  struct Memory {
    StepTally tallies[3] = {{1.5, 9.0}, {2.5, 16.0}, {3.0, 0.0}};
    StepInputs inputs{.unscale = 0.5, .norm_max = 1.0};
    AdamWStepScalars groups[40] = {};  // More than a warp has threads.
    StepVerdictNumbers verdict;
  } memory;
  for (const auto& [square, unscale] :
       {std::pair(0.0, 0.5), std::pair(std::numeric_limits<double>::infinity(), 0.5),
        std::pair(0.0, 0.0)}) {
    memory.tallies[2].sum_of_squares = square;
    memory.inputs.unscale = unscale;
    const bool updates = square == 0 && unscale > 0;
    Memory* device = nullptr;
    ASSERT_CUDA(cudaMalloc(&device, sizeof(memory)));
    ASSERT_CUDA(testing::CopyToDevice(device, &memory, sizeof(memory)));
    const StepScalarsView view{device->groups, 40, sizeof(AdamWStepScalars),
                               offsetof(AdamWStepScalars, skip)};
    ASSERT_TRUE(
        StepVerdictCuda(device->tallies, 3, true, &device->inputs, view, &device->verdict, stream_)
            .ok());
    ASSERT_CUDA(cudaStreamSynchronize(stream_));
    Memory got;
    ASSERT_CUDA(cudaMemcpy(&got, device, sizeof(got), cudaMemcpyDeviceToHost));
    EXPECT_EQ(got.verdict.loss_sum, 7.0);
    for (const AdamWStepScalars& group : got.groups) {
      EXPECT_EQ(group.skip, updates ? 0 : 1);
      EXPECT_EQ(group.grad_scale, updates ? static_cast<float>(0.5 * ClipFactor(2.5, 1.0)) : 0.0F);
    }
    cudaFree(device);
  }
}

template <class T>
void TestNorm(cudaStream_t stream, int64_t n, int64_t offset, int64_t shift, float largest = 3) {
  Buffer<T> x(n);
  x.Fill(5, largest);
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
    // The two add in different orders within a block.
    ASSERT_NEAR(got, expected, 1e-12 * expected) << n;
    ASSERT_TRUE(repeat == 0 || got == first) << n;
    first = got;
  }
  cudaFree(sums);
}

TEST_F(Cuda, SquareSumsAgreeAndRepeat) {
  for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{4095}, int64_t{8193}, int64_t{1} << 20,
                          (int64_t{9} << 20) + 5}) {
    if (emulation::emulated && n > int64_t{1} << 20) {
      continue;  // More blocks than one adds up: TreeSumGivesTheBitsOfTheCpu.
    }
    for (const int64_t shift : {0, 1}) {
      TestNorm<float>(stream_, n, 0, shift);
      TestNorm<BFloat16>(stream_, n, 100, shift);
    }
  }
}

// fp32 holds none of these squares, or only some.
TEST_F(Cuda, SquareSumsAgreeFarFromOne) {
  for (const float largest : {0.0F, 1e-38F, 1e-22F, 1e-15F, 1e-14F, 1e17F, 1e19F, 3e38F}) {
    TestNorm<float>(stream_, 8193, 0, 0, largest);
    TestNorm<BFloat16>(stream_, 4095, 100, 1, largest);
  }
}

// One element that is not finite, wherever it stands among the threads of a norm block: in the
// first warp or another, in a wide step or in the elements behind it, beside numbers that fp32's
// squares hold and beside such that they do not.
template <class T>
void TestNotFinite(cudaStream_t stream, float bad, int64_t at, int64_t shift, float largest) {
  constexpr int64_t kCount = 4096 + 4095;
  Buffer<T> x(kCount);
  x.Fill(6, largest);
  testing::Assign(x[at], bad);
  const Device<T> device(x, shift);
  const DeviceStruct<std::array<double, 3>> sums({});
  double* const to = sums.get()->data();
  ASSERT_TRUE(BlockSquareSumsCuda(device.get(), 0, kCount, to, stream).ok());
  ASSERT_TRUE(TreeSumCuda(to, 2, to + 2, stream).ok());
  const double total = sums.Read(stream)[2];
  if (std::isnan(bad)) {
    EXPECT_TRUE(std::isnan(total)) << total;
  } else {
    EXPECT_EQ(total, std::numeric_limits<double>::infinity());
  }
}

TEST_F(Cuda, SquareSumsShowWhatIsNotFinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float bad : {kInfinity, -kInfinity, testing::kNan}) {
    for (const int64_t at : {0, 1, 7, 255, 256, 2047, 4095, 4096, 8183, 8190}) {
      for (const int64_t shift : {0, 1}) {
        for (const float largest : {1.0F, 1e-22F, 1e19F}) {
          SCOPED_TRACE(::testing::Message() << bad << " at " << at << " shift " << shift);
          TestNotFinite<float>(stream_, bad, at, shift, largest);
          TestNotFinite<BFloat16>(stream_, bad, at, shift, largest);
        }
      }
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
    ASSERT_CUDA(testing::CopyToDevice(device, sums.data(), bytes));
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

TEST_F(Cuda, RoundingToBf16GivesTheBitsOfTheCpuApartAndInPlace) {
  for (const int64_t n : testing::OddSizes()) {
    for (const int64_t shift : {0, 1}) {
      for (const bool keeps : {false, true}) {
        SCOPED_TRACE(::testing::Message() << n << " shift " << shift << " keeps " << keeps);
        Buffer<float> src(n), rounded(n);
        src.Fill(8, 300.0F);
        Buffer<BFloat16> kept(n);
        Device<float> in_place(src, shift), apart(src, shift), result(rounded, shift);
        Device<BFloat16> device_kept(kept, shift);
        RoundToBf16Cpu(n, src.get(), rounded.get(), keeps ? kept.get() : nullptr, SerialFor);
        BFloat16* const to = keeps ? device_kept.get() : nullptr;
        ASSERT_TRUE(RoundToBf16Cuda(n, in_place.get(), in_place.get(), to, stream_).ok());
        EXPECT_TRUE(in_place.Read(stream_).SameBits(rounded));
        EXPECT_TRUE(device_kept.Read(stream_).SameBits(kept));
        ASSERT_TRUE(RoundToBf16Cuda(n, apart.get(), result.get(), to, stream_).ok());
        EXPECT_TRUE(result.Read(stream_).SameBits(rounded));
      }
    }
  }
}

}  // namespace
}  // namespace dtrain::kernels::kernels_cuda_test
