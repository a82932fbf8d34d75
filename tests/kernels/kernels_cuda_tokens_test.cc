// The CUDA twins of what works on tokens (cross-entropy, the embedding's gradient, dropout) against
// the CPU kernels. On a GPU (cuda_main.cc) or an emulated one (emulated_main.cc).
#include <utility>

#include "kernels/layers/cross_entropy.h"
#include "kernels/layers/dropout_stream.h"
#include "kernels/layers/embedding.h"
#include "tests/device_emulation/emulated.h"
#include "tests/kernels/cuda_testing.h"

namespace dtrain::kernels::kernels_cuda_tokens_test {
namespace {

using testing::Buffer;
using testing::Cuda;
using testing::Device;
using testing::DeviceStruct;
using testing::ExpectClose;

// Every third target is the ignored one.
Buffer<int64_t> Targets(int64_t tokens, int64_t vocab) {
  Buffer<int64_t> targets(tokens);
  for (int64_t i = 0; i < tokens; ++i) {
    targets[i] = i % 3 == 1 ? -100 : (i * 7919) % vocab;
  }
  return targets;
}

template <class T>
void TestCrossEntropy(cudaStream_t stream, int64_t tokens, int64_t vocab,
                      const CrossEntropyOptions& options, int64_t shift, int64_t gradient_shift) {
  const int64_t n = tokens * vocab;
  Buffer<T> logits(n), gradient(n);
  logits.Fill(1, 8.0F);
  const Buffer<int64_t> targets = Targets(tokens, vocab);
  Buffer<float> losses(tokens), lse(tokens);
  Device<T> glogits(logits, shift), ggradient(gradient, gradient_shift);
  Device<int64_t> gtargets(targets);
  Device<float> glosses(losses), glse(lse);
  const auto args = [&](const T* x, const int64_t* y, float* loss, float* sums, T* out) {
    return CrossEntropyArgs<T>{.tokens = tokens,
                               .vocab = vocab,
                               .options = options,
                               .logits = x,
                               .targets = y,
                               .losses = loss,
                               .lse = sums,
                               .gradient = out,
                               .gradient_scale = 0.5F};
  };
  CrossEntropyForwardCpu(args(logits.get(), targets.get(), losses.get(), lse.get(), gradient.get()),
                         SerialFor);
  const auto device =
      args(glogits.get(), gtargets.get(), glosses.get(), glse.get(), ggradient.get());
  ASSERT_TRUE(CrossEntropyForwardCuda(device, stream).ok());
  const Buffer<float> got = glosses.Read(stream);
  const Buffer<float> got_lse = glse.Read(stream);
  for (int64_t i = 0; i < tokens; ++i) {  // The header's promise.
    const double scale = std::max(1.0, std::fabs(double{lse(i)}));
    ASSERT_NEAR(got_lse(i), lse(i), 1e-6 * scale) << i;
    ASSERT_NEAR(got(i), losses(i), 2e-6 * scale) << i;  // x_y is as large as lse.
  }
  const Buffer<T> first = ggradient.Read(stream);
  // The hardware's exponential is off by some ulp; bf16 may flip a rounding.
  ExpectClose(first, gradient, sizeof(T) == 4 ? 1e-5 : 0x1p-8);
  DeviceStruct<CrossEntropyTotals> totals({});
  ASSERT_TRUE(CrossEntropyTotalsCuda(tokens, glosses.get(), gtargets.get(), options.ignore_index,
                                     totals.get(), stream)
                  .ok());
  const CrossEntropyTotals expected =
      CrossEntropyTotalsCpu(tokens, got.get(), targets.get(), options.ignore_index);
  EXPECT_EQ(totals.Read(stream).count, expected.count);
  EXPECT_NEAR(totals.Read(stream).sum, expected.sum, 1e-12 * std::fabs(expected.sum));
  auto in_place = device;  // The gradient replaces the logits.
  in_place.gradient = glogits.get();
  ASSERT_TRUE(CrossEntropyForwardCuda(in_place, stream).ok());
  if (shift == gradient_shift) {  // With another shift a sum over the row has another order.
    EXPECT_TRUE(glogits.Read(stream).SameBits(first));
  }
}

TEST_F(Cuda, CrossEntropyAgreesAndGradientsInPlaceHaveTheSameBits) {
  const CrossEntropyOptions all[] = {{}, {.z_loss = 1e-3F}, {.label_smoothing = 0.1F}};
  for (const CrossEntropyOptions& options : all) {
    for (const int64_t vocab : {1, 2, 7, 8, 50, 1000, 4096, 50257, 128256}) {
      for (const int64_t tokens : {1, 5, 67}) {
        if (emulation::emulated && tokens * vocab > int64_t{1} << 19) {
          continue;  // A block has a row; that there are many is shown by narrower ones.
        }
        for (const auto& [shift, gradient_shift] : {std::pair(0, 0), {1, 1}, {1, 0}}) {
          if (shift != gradient_shift && vocab > 1000) {
            continue;  // Element by element, however long the row is.
          }
          SCOPED_TRACE(::testing::Message() << tokens << " x " << vocab << " shifts " << shift
                                            << " and " << gradient_shift);
          TestCrossEntropy<float>(stream_, tokens, vocab, options, shift, gradient_shift);
          TestCrossEntropy<BFloat16>(stream_, tokens, vocab, options, shift, gradient_shift);
        }
      }
    }
  }
}

TEST_F(Cuda, ATargetOutsideTheVocabularyGivesNanAndReadsNothing) {
  constexpr int64_t kVocab = 24;
  Buffer<float> logits(2 * kVocab);
  logits.Fill(1);
  Buffer<int64_t> targets(2);
  targets[0] = kVocab;
  targets[1] = 3;
  Device<float> gx(logits), losses(Buffer<float>(2)), lse(Buffer<float>(2));
  Device<int64_t> gtargets(targets);
  ASSERT_TRUE(CrossEntropyForwardCuda(CrossEntropyArgs<float>{.tokens = 2,
                                                              .vocab = kVocab,
                                                              .logits = gx.get(),
                                                              .targets = gtargets.get(),
                                                              .losses = losses.get(),
                                                              .lse = lse.get(),
                                                              .gradient = gx.get()},
                                      stream_)
                  .ok());
  const Buffer<float> got = losses.Read(stream_);
  const Buffer<float> gradient = gx.Read(stream_);
  EXPECT_TRUE(std::isnan(got(0)));
  EXPECT_TRUE(std::isnan(gradient(0)));
  EXPECT_TRUE(std::isfinite(got(1)));
  EXPECT_TRUE(std::isfinite(gradient(kVocab)));
}

template <class T>
void TestEmbedding(cudaStream_t stream, int64_t tokens, int64_t vocab, int64_t width,
                   int64_t padding_index, int64_t shift) {
  Buffer<T> dy(tokens * width), dweight(vocab * width);
  Buffer<int64_t> ids(tokens), order(tokens), starts(vocab + 2);
  dy.Fill(1);
  SplitMix64 random(2);
  for (int64_t i = 0; i < tokens; ++i) {  // Low ids are frequent, as with words.
    const double u = random.Uniform();
    ids[i] = static_cast<int64_t>(u * u * u * static_cast<double>(vocab));
  }
  Device<T> gdy(dy, shift), gdweight(dweight, shift);
  Device<int64_t> gids(ids);
  const auto args = [&](const int64_t* at, const T* from, T* to) {
    return EmbeddingBackwardArgs<T>{.tokens = tokens,
                                    .vocab = vocab,
                                    .width = width,
                                    .padding_index = padding_index,
                                    .ids = at,
                                    .dy = from,
                                    .dweight = to,
                                    .order = order.get(),
                                    .starts = starts.get()};
  };
  EmbeddingBackwardCpu(args(ids.get(), dy.get(), dweight.get()), SerialFor);
  const auto bytes = EmbeddingWorkspaceBytesCuda(tokens, vocab);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  const Device<uint8_t> workspace(Buffer<uint8_t>(static_cast<int64_t>(*bytes)));
  for (int repeat = 0; repeat < 2; ++repeat) {
    ASSERT_TRUE(EmbeddingBackwardCuda(args(gids.get(), gdy.get(), gdweight.get()), workspace.get(),
                                      *bytes, stream)
                    .ok());
    EXPECT_TRUE(gdweight.Read(stream).SameBits(dweight)) << "repeat " << repeat;
  }
}

TEST_F(Cuda, EmbeddingsGradientGivesTheBitsOfTheCpu) {
  for (const int64_t tokens : {0, 1, 37, 5000}) {
    for (const int64_t vocab : {1, 50, 3001}) {
      for (const int64_t width : {1, 7, 8, 128, 130, 768, 1024}) {
        for (const int64_t padding : {-1, 3}) {
          SCOPED_TRACE(::testing::Message() << tokens << " " << vocab << " " << width);
          TestEmbedding<float>(stream_, tokens, vocab, width, padding, 0);
          TestEmbedding<BFloat16>(stream_, tokens, vocab, width, padding, 1);
        }
      }
    }
  }
  // Wider than the CPU's blocks of columns.
  TestEmbedding<float>(stream_, 300, 50, 2056, 3, 0);
  TestEmbedding<BFloat16>(stream_, 300, 50, 2056, 3, 1);
}

template <class T>
void TestDropout(cudaStream_t stream, int64_t n, double p, int64_t shift) {
  const PhiloxStream random{.seed = 0x123456789abcdefULL, .offset = 7};
  Buffer<T> x(n), out(n);
  x.Fill(1);
  if (n > 2) {
    testing::Assign(x[2], testing::kNan);
  }
  Device<T> gx(x, shift), gout(out, shift);
  const DeviceStruct<PhiloxStream> device_random(random);
  DropoutCpu(DropoutArgs<T>{.count = n, .p = p, .stream = random, .x = x.get(), .out = out.get()},
             SerialFor);
  DropoutArgs<T> args{.count = n, .p = p, .stream = {}, .x = gx.get(), .out = gout.get()};
  ASSERT_TRUE(DropoutStreamCuda(args, device_random.get(), stream).ok());
  EXPECT_TRUE(gout.Read(stream).SameBitsOrNan(out));
  args.out = gx.get();  // In place.
  ASSERT_TRUE(DropoutStreamCuda(args, device_random.get(), stream).ok());
  EXPECT_TRUE(gx.Read(stream).SameBitsOrNan(out));
}

TEST_F(Cuda, DropoutGivesTheBitsOfTheCpu) {
  for (const int64_t n : testing::OddSizes()) {
    for (const double p : {0.0, 0.1, 0.75, 1.0}) {
      for (const int64_t shift : {0, 1}) {
        SCOPED_TRACE(::testing::Message() << n << " p " << p << " shift " << shift);
        TestDropout<float>(stream_, n, p, shift);
        TestDropout<BFloat16>(stream_, n, p, shift);
      }
    }
  }
}

}  // namespace
}  // namespace dtrain::kernels::kernels_cuda_tokens_test
