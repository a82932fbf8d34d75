// The CUDA twins of what a Transformer's blocks are made of, against the CPU kernels: the same bits
// where the headers promise them, stated tolerances elsewhere. On a GPU (cuda_main.cc) or an
// emulated one (emulated_main.cc).
#include "kernels/cuda/cuda_row_index.h"
#include "kernels/layers/activation.h"
#include "kernels/layers/layernorm.h"
#include "kernels/layers/rmsnorm.h"
#include "kernels/layers/rope.h"
#include "tests/device_emulation/emulated.h"
#include "tests/kernels/cuda_testing.h"

namespace dtrain::kernels::kernels_cuda_blocks_test {
namespace {

using testing::Buffer;
using testing::Cuda;
using testing::Device;
using testing::ExpectClose;

// fp32 sums in another order: 1e-5; in bf16 that may flip one rounding, and neighbours are up to
// 2^-7 of the value apart.
template <class T>
constexpr double kSumTolerance = sizeof(T) == 4 ? 1e-5 : 0x1p-7;

template <class T>
void TestActivation(cudaStream_t stream, Activation activation, int64_t n, int64_t shift) {
  Buffer<T> x(n), dy(n), y(n), dx(n);
  x.Fill(1, 100.0F);
  dy.Fill(2);
  Device<T> gx(x, shift), gdy(dy, shift), gy(y, shift), gdx(dx, shift);
  ActivationForwardCpu(ActivationForwardArgs<T>{activation, n, x.get(), y.get()}, SerialFor);
  ActivationBackwardCpu(ActivationBackwardArgs<T>{activation, n, x.get(), dy.get(), dx.get()},
                        SerialFor);
  ASSERT_TRUE(
      ActivationForwardCuda(ActivationForwardArgs<T>{activation, n, gx.get(), gy.get()}, stream)
          .ok());
  ASSERT_TRUE(ActivationBackwardCuda(
                  ActivationBackwardArgs<T>{activation, n, gx.get(), gdy.get(), gdx.get()}, stream)
                  .ok());
  EXPECT_TRUE(gy.Read(stream).SameBits(y));
  EXPECT_TRUE(gdx.Read(stream).SameBits(dx));
}

// Gate and up as rows of one buffer.
template <class T>
void TestGated(cudaStream_t stream, Activation activation, int64_t rows, int64_t hidden,
               int64_t shift) {
  const int64_t n = rows * hidden;
  Buffer<T> both(2 * n), dout(n), out(n), dboth(2 * n);
  both.Fill(1, 100.0F);
  dout.Fill(3);
  Device<T> gboth(both, shift), gdout(dout, shift), gout(out, shift), gdboth(dboth, shift);
  const auto forward = [=](T* from, T* to) {
    return GatedForwardArgs<T>{activation, rows, hidden, 2 * hidden, from, from + hidden, to};
  };
  const auto backward = [=](T* from, T* gradient, T* to) {
    return GatedBackwardArgs<T>{activation,    rows,     hidden, 2 * hidden, from,
                                from + hidden, gradient, to,     to + hidden};
  };
  GatedForwardCpu(forward(both.get(), out.get()), SerialFor);
  GatedBackwardCpu(backward(both.get(), dout.get(), dboth.get()), SerialFor);
  ASSERT_TRUE(GatedForwardCuda(forward(gboth.get(), gout.get()), stream).ok());
  ASSERT_TRUE(GatedBackwardCuda(backward(gboth.get(), gdout.get(), gdboth.get()), stream).ok());
  EXPECT_TRUE(gout.Read(stream).SameBits(out));
  EXPECT_TRUE(gdboth.Read(stream).SameBits(dboth));
}

TEST_F(Cuda, ActivationsGiveTheBitsOfTheCpu) {
  for (const Activation activation :
       {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh}) {
    for (const int64_t shift : {0, 1}) {
      for (const int64_t n : testing::OddSizes()) {
        SCOPED_TRACE(n);
        TestActivation<float>(stream_, activation, n, shift);
        TestActivation<BFloat16>(stream_, activation, n, shift);
        TestGated<float>(stream_, activation, 1, n, shift);
        TestGated<BFloat16>(stream_, activation, 1, n, shift);
      }
      for (const int64_t hidden : {1, 7, 8, 40, 1000}) {
        SCOPED_TRACE(hidden);
        TestGated<float>(stream_, activation, 37, hidden, shift);
        TestGated<BFloat16>(stream_, activation, 37, hidden, shift);
      }
    }
  }
}

// The parts of a fused projection on their own, and their gradients together again.
template <class T>
void TestRope(cudaStream_t stream, RopeForm form, int64_t head_dim, int64_t rotary_dim,
              int64_t shift) {
  constexpr int64_t kTokens = 19;
  constexpr int64_t kPositions = 23;
  const int64_t heads[] = {4, 2, 2};
  const int64_t width = 8 * head_dim;
  Buffer<T> qkv(kTokens * width), apart(kTokens * width), back(kTokens * width);
  Buffer<float> cos(kPositions * rotary_dim / 2), sin(kPositions * rotary_dim / 2);
  Buffer<int64_t> positions(kTokens);
  qkv.Fill(1, 3.0F);
  cos.Fill(2);
  sin.Fill(3);
  for (int64_t i = 0; i < kTokens; ++i) {
    positions[i] = (i * 7 + 3) % kPositions;
  }
  Device<T> gqkv(qkv, shift), gapart(apart, shift), gback(back, shift);
  Device<float> gcos(cos, shift), gsin(sin, shift);
  Device<int64_t> gpositions(positions);
  // From rows of `width` to three packed buffers one after the other, or the way back.
  const auto args = [&](const float* c, const float* s, const int64_t* at, const T* in, T* out,
                        bool inverse) {
    RopeArgs<T> result{form, inverse, kTokens, 5, head_dim, rotary_dim, c, s, at};
    for (int part = 0; part < 3; ++part) {
      const int64_t row = heads[part] * head_dim;
      result.parts[part] = {heads[part],          part < 2, in, out, inverse ? row : width,
                            inverse ? width : row};
      in += inverse ? kTokens * row : row;
      out += inverse ? row : kTokens * row;
    }
    return result;
  };
  for (const bool implicit : {false, true}) {
    const int64_t* const at = implicit ? nullptr : positions.get();
    const int64_t* const gat = implicit ? nullptr : gpositions.get();
    RopeCpu(args(cos.get(), sin.get(), at, qkv.get(), apart.get(), false), SerialFor);
    RopeCpu(args(cos.get(), sin.get(), at, apart.get(), back.get(), true), SerialFor);
    ASSERT_TRUE(
        RopeCuda(args(gcos.get(), gsin.get(), gat, gqkv.get(), gapart.get(), false), stream).ok());
    ASSERT_TRUE(
        RopeCuda(args(gcos.get(), gsin.get(), gat, gapart.get(), gback.get(), true), stream).ok());
    EXPECT_TRUE(gapart.Read(stream).SameBits(apart)) << implicit;
    EXPECT_TRUE(gback.Read(stream).SameBits(back)) << implicit;
  }
}

TEST_F(Cuda, RopeGivesTheBitsOfTheCpu) {
  for (const RopeForm form : {RopeForm::kHalfSplit, RopeForm::kInterleaved}) {
    for (const auto& [head_dim, rotary_dim] : std::vector<std::pair<int64_t, int64_t>>{
             {2, 2}, {3, 2}, {16, 16}, {34, 34}, {64, 32}, {64, 64}, {80, 20}, {128, 128}}) {
      for (const int64_t shift : {0, 1}) {
        SCOPED_TRACE(::testing::Message() << head_dim << " " << rotary_dim << " shift " << shift);
        TestRope<float>(stream_, form, head_dim, rotary_dim, shift);
        TestRope<BFloat16>(stream_, form, head_dim, rotary_dim, shift);
      }
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
  const double tolerance = kSumTolerance<T>;
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

// Rows and widths of a norm: every width, and for each way of walking a row (RowPlanOf) more rows
// than the backward has chunks.
struct NormShape {
  int64_t tokens;
  int64_t hidden;
};
std::vector<NormShape> NormShapes(int64_t narrowest) {
  std::vector<NormShape> shapes;
  for (const int64_t hidden : {narrowest, int64_t{17}, int64_t{64}, int64_t{128}, int64_t{256},
                               int64_t{768}, int64_t{1000}, int64_t{1024}, int64_t{2048},
                               int64_t{4096}, int64_t{8192}, int64_t{16384}, int64_t{20000}}) {
    shapes.push_back({1, hidden});
    shapes.push_back({5, hidden});
  }
  for (const int64_t hidden : {17, 1000, 2048, 8192, 8200}) {
    shapes.push_back({RowChunksCuda(1 << 20, hidden) + 8, hidden});
  }
  for (const int64_t hidden : {64, 200, 768}) {  // Several rows a block.
    const int64_t rows = RowPlanOf(hidden, /*aligned=*/true).rows();
    shapes.push_back({rows * kRowChunksMaxCuda + 3, hidden});
  }
  return shapes;
}

// Many rows are nearly all of the time on the emulated device. They are tried once there, because
// the arithmetic of chunks is the same for every type; shapes of few rows try types and alignments.
template <class T>
bool IsTried(const NormShape& shape, bool with, int64_t shift) {
  const bool quick = shape.tokens * shape.hidden <= int64_t{1} << 17;
  const bool once = sizeof(T) == 4 && with && shift == 0 && !emulation::descending;
  // bf16 without a residual is tried by teams (768) and by blocks that load a row ahead (1000).
  const bool plain = sizeof(T) == 2 && !with && shift == 0 && !emulation::descending &&
                     (shape.hidden == 768 || shape.hidden == 1000);
  return !emulation::emulated || quick || once || plain;
}

TEST_F(Cuda, RmsNormAgreesAndRepeats) {
  for (const NormShape& shape : NormShapes(1)) {
    for (const bool residual : {false, true}) {
      for (const int64_t shift : {0, 1}) {
        const auto& [tokens, hidden] = shape;
        SCOPED_TRACE(::testing::Message() << tokens << " x " << hidden << " shift " << shift);
        if (IsTried<float>(shape, residual, shift)) {
          TestRmsNorm<float>(stream_, tokens, hidden, residual, shift);
        }
        if (IsTried<BFloat16>(shape, residual, shift)) {
          TestRmsNorm<BFloat16>(stream_, tokens, hidden, residual, shift);
        }
      }
    }
  }
}

template <class T>
void TestLayerNorm(cudaStream_t stream, int64_t tokens, int64_t hidden, bool with, int64_t shift) {
  const int64_t n = tokens * hidden;
  Buffer<T> x(n), r(n), sum(n), y(n), dy(n), dsum(n), dh(n), weight(hidden), bias(hidden),
      dweight(hidden), dbias(hidden);
  Buffer<float> mean(tokens), rstd(tokens), workspace(LayerNormWorkspaceFloats(tokens, hidden));
  const Buffer<float> device_workspace(LayerNormWorkspaceFloatsCuda(tokens, hidden));
  x.Fill(1, 2.0F, 0.5F);
  r.Fill(2);
  weight.Fill(3, 0.5F, 1.0F);
  bias.Fill(6);
  dy.Fill(4);
  dsum.Fill(5);
  Device<T> gx(x, shift), gr(r, shift), gsum(sum, shift), gy(y, shift), gdy(dy, shift),
      gdsum(dsum, shift), gdh(dh, shift), gweight(weight, shift), gbias(bias, shift),
      gdweight(dweight, shift), gdbias(dbias, shift);
  Device<float> gmean(mean), grstd(rstd), gworkspace(device_workspace);
  // `with`: a residual and a bias.
  LayerNormForwardArgs<T> forward{tokens,  hidden,       1e-5F,      x.get(),
                                  r.get(), weight.get(), bias.get(), sum.get(),
                                  y.get(), mean.get(),   rstd.get()};
  LayerNormForwardArgs<T> device_forward{tokens,   hidden,        1e-5F,       gx.get(),
                                         gr.get(), gweight.get(), gbias.get(), gsum.get(),
                                         gy.get(), gmean.get(),   grstd.get()};
  LayerNormBackwardArgs<T> backward{tokens,     hidden,        sum.get(),   weight.get(),
                                    mean.get(), rstd.get(),    dy.get(),    dsum.get(),
                                    dh.get(),   dweight.get(), dbias.get(), workspace.get()};
  LayerNormBackwardArgs<T> device_backward{
      tokens,    hidden,      gsum.get(), gweight.get(),  gmean.get(),  grstd.get(),
      gdy.get(), gdsum.get(), gdh.get(),  gdweight.get(), gdbias.get(), gworkspace.get()};
  if (!with) {
    for (LayerNormForwardArgs<T>* const args : {&forward, &device_forward}) {
      args->residual = args->bias = nullptr;
      args->sum = nullptr;
    }
    backward.h = x.get();
    device_backward.h = gx.get();
    for (LayerNormBackwardArgs<T>* const args : {&backward, &device_backward}) {
      args->dsum = nullptr;
      args->dbias = nullptr;
    }
  }
  LayerNormForwardCpu(forward, SerialFor);
  LayerNormBackwardCpu(backward, SerialFor);
  ASSERT_TRUE(LayerNormForwardCuda(device_forward, stream).ok());
  ASSERT_TRUE(LayerNormBackwardCuda(device_backward, stream).ok());
  const double tolerance = kSumTolerance<T>;
  ExpectClose(gmean.Read(stream), mean, 1e-5);
  ExpectClose(grstd.Read(stream), rstd, 1e-5);
  ExpectClose(gy.Read(stream), y, tolerance);
  ExpectClose(gdh.Read(stream), dh, tolerance);
  const Buffer<T> first = gdweight.Read(stream);
  ExpectClose(first, dweight, tolerance);
  if (with) {
    EXPECT_TRUE(gsum.Read(stream).SameBits(sum));
    ExpectClose(gdbias.Read(stream), dbias, tolerance);
  }
  ASSERT_TRUE(LayerNormBackwardCuda(device_backward, stream).ok());
  EXPECT_TRUE(gdweight.Read(stream).SameBits(first)) << "not the same bits on repeat";
}

TEST_F(Cuda, LayerNormAgreesAndRepeats) {
  for (const NormShape& shape : NormShapes(4)) {
    for (const bool with : {false, true}) {
      for (const int64_t shift : {0, 1}) {
        const auto& [tokens, hidden] = shape;
        SCOPED_TRACE(::testing::Message() << tokens << " x " << hidden << " shift " << shift);
        if (IsTried<float>(shape, with, shift)) {
          TestLayerNorm<float>(stream_, tokens, hidden, with, shift);
        }
        if (IsTried<BFloat16>(shape, with, shift)) {
          TestLayerNorm<BFloat16>(stream_, tokens, hidden, with, shift);
        }
      }
    }
  }
}

}  // namespace
}  // namespace dtrain::kernels::kernels_cuda_blocks_test
