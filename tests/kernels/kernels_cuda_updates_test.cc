// The CUDA twins of the optimizers whose states are narrow or whose norms are whole tensors' (AdamW
// with bf16 moments, rounded to nearest and stochastically; LAMB, Muon, plain SGD) against the CPU
// kernels. On a GPU (cuda_main.cc) or an emulated one (emulated_main.cc).
#include <vector>

#include "kernels/optimizer/adamw_stochastic.h"
#include "kernels/optimizer/grad_norm.h"
#include "kernels/optimizer/lamb.h"
#include "kernels/optimizer/muon.h"
#include "kernels/optimizer/sgd.h"
#include "tests/kernels/cuda_testing.h"

namespace dtrain::kernels::kernels_cuda_updates_test {
namespace {

using testing::Buffer;
using testing::Cuda;
using testing::Device;
using testing::DeviceStruct;

// `first`: the place in the layout, for stochastic rounding; below 0: to nearest.
void TestNarrowMoments(cudaStream_t stream, int64_t n, int64_t first, int64_t shift, bool copy) {
  const AdamWOptions options{
      .lr = 3e-3, .beta2 = 0.999, .weight_decay = 0.1, .grad_scale = 0.4, .step = 7};
  const PhiloxStream random{.seed = 99, .offset = 7};
  Buffer<float> p(n), g(n);
  Buffer<BFloat16> m(n), v(n), out(n);
  p.Fill(1);
  g.Fill(2);
  m.Fill(3, 0.1F);
  v.Fill(4, 0.01F, 0.0101F);
  Device<float> gp(p, shift), gg(g, shift);
  Device<BFloat16> gm(m, shift), gv(v, shift), gout(out, shift);
  const DeviceStruct<AdamWStepScalars> scalars(MakeAdamWStepScalars(options));
  const DeviceStruct<PhiloxStream> grandom(random);
  BFloat16* const host_copy = copy ? out.get() : nullptr;
  BFloat16* const device_copy = copy ? gout.get() : nullptr;
  if (first < 0) {
    AdamWCpuBf16State(n, p.get(), g.get(), m.get(), v.get(), host_copy, options, SerialFor);
    ASSERT_TRUE(AdamWCudaBf16State(n, gp.get(), gg.get(), gm.get(), gv.get(), device_copy,
                                   scalars.get(), stream)
                    .ok());
  } else {
    AdamWStochasticCpu(n, first, p.get(), g.get(), m.get(), v.get(), host_copy, options, random,
                       SerialFor);
    ASSERT_TRUE(AdamWStochasticCuda(n, first, gp.get(), gg.get(), gm.get(), gv.get(), device_copy,
                                    scalars.get(), grandom.get(), stream)
                    .ok());
  }
  EXPECT_TRUE(gp.Read(stream).SameBits(p));
  EXPECT_TRUE(gm.Read(stream).SameBits(m));
  EXPECT_TRUE(gv.Read(stream).SameBits(v));
  EXPECT_TRUE(gout.Read(stream).SameBits(out));
}

TEST_F(Cuda, AdamWWithNarrowMomentsGivesTheBitsOfTheCpu) {
  for (const int64_t n : testing::OddSizes()) {
    for (const int64_t first : {-1, 0, 8, 37, 100'003}) {
      for (const int64_t shift : {0, 1}) {
        for (const bool copy : {false, true}) {
          SCOPED_TRACE(::testing::Message() << n << " from " << first << " shift " << shift);
          TestNarrowMoments(stream_, n, first, shift, copy);
        }
      }
    }
  }
}

TEST_F(Cuda, ASkippedStochasticUpdateChangesNothing) {
  Buffer<float> p(100), g(100);
  Buffer<BFloat16> m(100), v(100);
  p.Fill(1);
  g.Fill(2);
  m.Fill(3);
  v.Fill(4);
  Device<float> gp(p), gg(g);
  Device<BFloat16> gm(m), gv(v);
  AdamWStepScalars scalars = MakeAdamWStepScalars({});
  scalars.skip = 1;
  const DeviceStruct<AdamWStepScalars> device(scalars);
  const DeviceStruct<PhiloxStream> random({});
  ASSERT_TRUE(AdamWStochasticCuda(100, 0, gp.get(), gg.get(), gm.get(), gv.get(), nullptr,
                                  device.get(), random.get(), stream_)
                  .ok());
  EXPECT_TRUE(gp.Read(stream_).SameBits(p));
  EXPECT_TRUE(gm.Read(stream_).SameBits(m));
  EXPECT_TRUE(gv.Read(stream_).SameBits(v));
}

void TestLamb(cudaStream_t stream, int64_t n, int64_t offset, int64_t shift) {
  const LambOptions options{.lr = 2e-2,
                            .beta1 = 0.8,
                            .beta2 = 0.95,
                            .eps = 1e-6,
                            .weight_decay = 0.1,
                            .grad_scale = 0.37,
                            .grad_limit = 0.9,
                            .step = 3};
  Buffer<float> p(n), g(n), m(n), v(n);
  Buffer<BFloat16> out(n);
  p.Fill(1, 2.0F);
  g.Fill(2, 3.0F);
  m.Fill(3, 0.1F);
  v.Fill(4, 0.01F, 0.0101F);
  const int64_t blocks = NormBlocks(offset, n);
  const Buffer<double> none(2 * blocks);
  Device<float> gp(p, shift), gg(g, shift), gm(m, shift), gv(v, shift);
  Device<BFloat16> gout(out, shift);
  const Device<double> gsums(none);
  auto* const device_sums = reinterpret_cast<LambSums*>(gsums.get());
  const LambStepScalars scalars = MakeLambStepScalars(options);
  const DeviceStruct<LambStepScalars> gscalars(scalars);
  const DeviceStruct<float> gtrust(-1.0F);
  std::vector<LambSums> sums(static_cast<size_t>(blocks));
  LambMomentsCpu(n, offset, p.get(), g.get(), m.get(), v.get(), sums.data(), options, SerialFor);
  ASSERT_TRUE(LambMomentsCuda(n, offset, gp.get(), gg.get(), gm.get(), gv.get(), device_sums,
                              gscalars.get(), stream)
                  .ok());
  EXPECT_TRUE(gm.Read(stream).SameBits(m));
  EXPECT_TRUE(gv.Read(stream).SameBits(v));
  const Buffer<double> got = gsums.Read(stream);
  LambSums all;
  for (int64_t i = 0; i < blocks; ++i) {
    const LambSums& block = sums[static_cast<size_t>(i)];
    ASSERT_NEAR(got.get()[2 * i], block.weights, 1e-12 * block.weights) << i;
    ASSERT_NEAR(got.get()[2 * i + 1], block.updates, 1e-12 * block.updates) << i;
    all.weights += block.weights;
    all.updates += block.updates;
  }
  ASSERT_TRUE(LambTrustCuda(device_sums, blocks, gscalars.get(), gtrust.get(), stream).ok());
  const double trust = LambTrust(all, options);
  // One rounding to fp32 of a number that agrees to 1e-12.
  ASSERT_NEAR(gtrust.Read(stream), scalars.step_size * trust, 0x1p-23 * scalars.step_size * trust);
  LambApplyCpu(n, p.get(), m.get(), v.get(), out.get(), trust, options, SerialFor);
  ASSERT_TRUE(LambApplyCuda(n, gp.get(), gm.get(), gv.get(), gout.get(), gtrust.get(),
                            gscalars.get(), stream)
                  .ok());
  testing::ExpectClose(gp.Read(stream), p, 0x1p-22);
  const Buffer<float> weights = gp.Read(stream);
  const Buffer<BFloat16> copies = gout.Read(stream);
  for (int64_t i = 0; i < n; ++i) {
    ASSERT_EQ(copies.get()[i].bits, ToBFloat16(weights(i)).bits) << i;
  }
}

TEST_F(Cuda, LambAgreesAndItsMomentsHaveTheBitsOfTheCpu) {
  for (const int64_t n : {1, 15, 17, 4096, 9001, 70'001}) {
    for (const int64_t offset : {0, 100, 4095}) {
      for (const int64_t shift : {0, 1}) {
        SCOPED_TRACE(::testing::Message() << n << " at " << offset << " shift " << shift);
        TestLamb(stream_, n, offset, shift);
      }
    }
  }
}

void TestMuon(cudaStream_t stream, int64_t n, int64_t shift, bool nesterov) {
  const MuonOptions options{.lr = 0.1,
                            .momentum = 0.9,
                            .weight_decay = 0.2,
                            .nesterov = nesterov,
                            .grad_scale = 0.5,
                            .grad_limit = 1};
  Buffer<float> p(n), g(n), s(n), direction(n);
  Buffer<BFloat16> out(n);
  p.Fill(1, 2.0F);
  g.Fill(2, 3.0F);
  s.Fill(3);
  Device<float> gp(p, shift), gg(g, shift), gs(s, shift), gdirection(direction, shift);
  Device<BFloat16> gout(out, shift);
  const DeviceStruct<MuonStepScalars> scalars(MakeMuonStepScalars(options));
  MuonDirectionCpu(n, g.get(), s.get(), direction.get(), options, SerialFor);
  MuonApplyCpu(n, p.get(), direction.get(), out.get(), 1.5, options, SerialFor);
  ASSERT_TRUE(
      MuonDirectionCuda(n, gg.get(), gs.get(), gdirection.get(), scalars.get(), stream).ok());
  EXPECT_TRUE(gs.Read(stream).SameBits(s));
  EXPECT_TRUE(gdirection.Read(stream).SameBits(direction));
  ASSERT_TRUE(
      MuonApplyCuda(n, gp.get(), gdirection.get(), gout.get(), 1.5, scalars.get(), stream).ok());
  EXPECT_TRUE(gp.Read(stream).SameBits(p));
  EXPECT_TRUE(gout.Read(stream).SameBits(out));
}

TEST_F(Cuda, MuonGivesTheBitsOfTheCpu) {
  for (const int64_t n : testing::OddSizes()) {
    for (const int64_t shift : {0, 1}) {
      for (const bool nesterov : {false, true}) {
        SCOPED_TRACE(::testing::Message() << n << " shift " << shift);
        TestMuon(stream_, n, shift, nesterov);
      }
    }
  }
}

TEST_F(Cuda, SgdWithoutMomentumGivesTheBitsOfTheCpu) {
  const SgdOptions options{.lr = 0.1, .weight_decay = 0.1, .grad_scale = 0.3};
  const DeviceStruct<SgdStepScalars> scalars(MakeSgdStepScalars(options));
  for (const int64_t n : testing::OddSizes()) {
    Buffer<float> p(n), g(n);
    Buffer<BFloat16> out(n);
    p.Fill(1);
    g.Fill(2);
    Device<float> gp(p), gg(g);
    Device<BFloat16> gout(out);
    SgdCpu(n, p.get(), g.get(), {}, out.get(), options, SerialFor);
    ASSERT_TRUE(SgdCuda(n, gp.get(), gg.get(), {}, gout.get(), scalars.get(), stream_).ok());
    EXPECT_TRUE(gp.Read(stream_).SameBits(p)) << n;
    EXPECT_TRUE(gout.Read(stream_).SameBits(out)) << n;
  }
}

}  // namespace
}  // namespace dtrain::kernels::kernels_cuda_updates_test
