// Attention of packed documents by one call: where documents begin, which heads the call takes, and
// its results and gradients beside those of one call each. LibTorch has the call on a GPU only;
// here a kernel written out document by document stands in for it, with the checks that the GPU's
// makes.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <cmath>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "dtrain/token_loader.h"
#include "gpt/causal_attention.h"
#include "gpt/document_attention.h"
#include "tests/runtime/testing/ops_testing.h"

namespace gpt_documents_test {
namespace {

using dtrain::ops::testing::Distance;
using dtrain::ops::testing::RandomLeaf;
using dtrain::ops::testing::Tensors;

using Lengths = std::vector<int64_t>;
using MaybeTensor = std::optional<at::Tensor>;

// Rows of `sequence` tokens with the places of tokens in these documents.
at::Tensor Positions(const Lengths& lengths, int64_t sequence) {
  Tensors positions;
  for (const int64_t length : lengths) {
    positions.push_back(at::arange(length, at::kLong));
  }
  return at::cat(positions).view({-1, sequence});
}

std::vector<int> Offsets(const at::Tensor& positions, int64_t documents) {
  const at::Tensor offsets = DocumentOffsets(positions, documents);
  EXPECT_EQ(offsets.scalar_type(), at::kInt);
  EXPECT_TRUE(offsets.is_contiguous());
  const auto* const begin = offsets.const_data_ptr<int>();
  return {begin, begin + offsets.numel()};
}

TEST(DocumentOffsetsTest, AreTheSumsOfTheLengths) {
  for (const Lengths& lengths :
       {Lengths{16, 16}, Lengths{5, 1, 10, 7, 9}, Lengths{1, 15, 15, 1}, Lengths(32, 1)}) {
    const at::Tensor positions = Positions(lengths, 16);
    ASSERT_EQ(dtrain::DocumentLengths(positions), lengths);
    std::vector<int> sums = {0};
    for (const int64_t length : lengths) {
      sums.push_back(sums.back() + static_cast<int>(length));
    }
    EXPECT_EQ(Offsets(positions, static_cast<int64_t>(lengths.size())), sums);
  }
}

TEST(DocumentOffsetsTest, ARowThatGoesOnWithADocumentBeginsOne) {
  const at::Tensor positions = at::arange(3, 11, at::kLong).view({2, 4});  // 3 .. 6 and 7 .. 10.
  EXPECT_EQ(dtrain::DocumentLengths(positions), (Lengths{4, 4}));
  EXPECT_EQ(Offsets(positions, 2), (std::vector<int>{0, 4, 8}));
}

TEST(DocumentOffsetsTest, EntriesBeyondTheDocumentsAreTheEnd) {
  EXPECT_EQ(Offsets(Positions({3, 5}, 8), 5), (std::vector<int>{0, 3, 8, 8, 8, 8}));
  EXPECT_EQ(Offsets(Positions(Lengths(4, 1), 2), 6), (std::vector<int>{0, 1, 2, 3, 4, 4, 4}));
}

TEST(FitsOneCallTest, TakesWhatFlashAttentionTakes) {
  const PackedHeads fits = {
      .on_gpu = true, .type = at::kBFloat16, .head_dim = 64, .tokens = 4096, .documents = 256};
  EXPECT_TRUE(FitsOneCall(fits));
  const auto with = [&](auto change) {
    PackedHeads heads = fits;
    change(heads);
    return FitsOneCall(heads);
  };
  EXPECT_TRUE(with([](PackedHeads& heads) { heads.type = at::kHalf; }));
  EXPECT_TRUE(with([](PackedHeads& heads) { heads.head_dim = 256; }));
  EXPECT_TRUE(with([](PackedHeads& heads) { heads.head_dim = 8; }));
  EXPECT_FALSE(with([](PackedHeads& heads) { heads.on_gpu = false; }));
  EXPECT_FALSE(with([](PackedHeads& heads) { heads.type = at::kFloat; }));
  EXPECT_FALSE(with([](PackedHeads& heads) { heads.head_dim = 264; }));
  EXPECT_FALSE(with([](PackedHeads& heads) { heads.head_dim = 60; }));
  EXPECT_FALSE(with([](PackedHeads& heads) { heads.dropout = 0.1; }));
  // Documents of fewer than 16 tokens on average: backward's memory.
  EXPECT_FALSE(with([](PackedHeads& heads) { heads.documents = 257; }));
}

// How often each call came, and whether backward's found LibTorch strictly deterministic.
struct Calls {
  int forward = 0;
  int backward = 0;
  bool strict = false;
};
Calls calls;

// One document's heads: q, k, v and what they give, [heads, length, head_dim] each, where the heads
// of k and v are repeated for their group.
struct Document {
  at::Tensor q, k, v;
  double scale = 0;

  // The softmax's input: -inf for tokens that come later.
  at::Tensor Scores() const {
    const int64_t length = q.size(1);
    const at::Tensor later = at::ones({length, length}, at::kBool).triu(1);
    return at::matmul(q, k.transpose(1, 2)).mul(scale).masked_fill(later, -INFINITY);
  }
};

// [tokens, heads, head_dim] -> [wanted heads, length, head_dim] of the tokens from `begin`.
at::Tensor Cut(const at::Tensor& x, int64_t begin, int64_t length, int64_t heads) {
  return x.narrow(0, begin, length).transpose(0, 1).repeat_interleave(heads / x.size(1), 0);
}

Document DocumentAt(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t begin,
                    int64_t length) {
  const int64_t heads = q.size(1);
  return {Cut(q, begin, length, heads), Cut(k, begin, length, heads), Cut(v, begin, length, heads),
          1 / std::sqrt(static_cast<double>(q.size(2)))};
}

// The checks of LibTorch's mha_varlen_fwd and mha_varlen_bwd, and that all tokens are covered.
void Check(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& offsets,
           int64_t length) {
  TORCH_CHECK(q.dim() == 3 && k.sizes() == v.sizes() && q.size(0) == k.size(0));
  TORCH_CHECK(q.size(2) == k.size(2) && q.size(2) % 8 == 0 && q.size(2) <= 256);
  TORCH_CHECK(q.size(1) % k.size(1) == 0);
  TORCH_CHECK(q.stride(-1) == 1 && k.stride(-1) == 1 && v.stride(-1) == 1);
  TORCH_CHECK(offsets.scalar_type() == at::kInt && offsets.dim() == 1 && offsets.is_contiguous());
  TORCH_CHECK(offsets[0].item<int>() == 0 && offsets[-1].item<int>() == q.size(0));
  const at::Tensor lengths = offsets.diff();
  TORCH_CHECK(lengths.min().item<int>() >= 0 && lengths.max().item<int>() <= length);
}

// Calls `each` with the first token and the number of tokens of every document that has any.
template <class Each>
void ForEachDocument(const at::Tensor& offsets, const Each& each) {
  for (int64_t i = 0; i + 1 < offsets.numel(); ++i) {
    const int64_t begin = offsets[i].item<int64_t>();
    const int64_t length = offsets[i + 1].item<int64_t>() - begin;
    if (length > 0) {
      each(begin, length);
    }
  }
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> Forward(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const MaybeTensor& offsets,
    const MaybeTensor& key_offsets, c10::SymInt length, c10::SymInt key_length, double dropout,
    bool causal, bool debug, std::optional<double> scale, std::optional<c10::SymInt> /*left*/,
    std::optional<c10::SymInt> /*right*/, const MaybeTensor& /*used*/,
    const MaybeTensor& /*alibi*/) {
  ++calls.forward;
  Check(q, k, v, offsets.value(), length.expect_int());
  TORCH_CHECK(causal && !debug && dropout == 0 && !scale.has_value() && length == key_length);
  TORCH_CHECK(key_offsets.value().is_same(offsets.value()));
  at::Tensor y = at::full_like(q, NAN);  // A token that is left out shows.
  at::Tensor log_sums = at::full({q.size(1), q.size(0)}, NAN, q.options());
  ForEachDocument(*offsets, [&](int64_t begin, int64_t tokens) {
    const Document document = DocumentAt(q, k, v, begin, tokens);
    const at::Tensor scores = document.Scores();
    y.narrow(0, begin, tokens).copy_(at::matmul(scores.softmax(-1), document.v).transpose(0, 1));
    log_sums.narrow(1, begin, tokens).copy_(scores.logsumexp(-1));
  });
  return {y, log_sums, at::zeros({2}, at::kLong), at::empty({}, at::kLong), at::empty({0})};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> Backward(
    const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& y, const at::Tensor& log_sums, const at::Tensor& offsets,
    const at::Tensor& key_offsets, c10::SymInt length, c10::SymInt key_length, double dropout,
    bool causal, const at::Tensor& random_state, const at::Tensor& unused,
    std::optional<double> scale, std::optional<c10::SymInt> /*left*/,
    std::optional<c10::SymInt> /*right*/) {
  ++calls.backward;
  calls.strict = at::globalContext().deterministicAlgorithms() &&
                 !at::globalContext().deterministicAlgorithmsWarnOnly();
  Check(q, k, v, offsets, length.expect_int());
  TORCH_CHECK(causal && dropout == 0 && !scale.has_value() && length == key_length);
  TORCH_CHECK(key_offsets.is_same(offsets) && random_state.numel() == 2 && unused.numel() == 1);
  at::Tensor dq = at::full_like(q, NAN), dk = at::full_like(k, NAN), dv = at::full_like(v, NAN);
  ForEachDocument(offsets, [&](int64_t begin, int64_t tokens) {
    const Document document = DocumentAt(q, k, v, begin, tokens);
    const auto rows = [&](const at::Tensor& x) { return Cut(x, begin, tokens, q.size(1)); };
    // Dao et al. 2022 (arXiv 2205.14135), algorithm 4, without its blocks.
    const at::Tensor shares =
        (document.Scores() - log_sums.narrow(1, begin, tokens).unsqueeze(-1)).exp();
    const at::Tensor dshares = at::matmul(rows(dy), document.v.transpose(1, 2));
    const at::Tensor means = (rows(dy) * rows(y)).sum(-1, /*keepdim=*/true);
    const at::Tensor dscores = shares * (dshares - means) * document.scale;
    const auto write = [&](at::Tensor& to, const at::Tensor& by_head) {  // Adds groups up.
      const int64_t group = q.size(1) / to.size(1);
      to.narrow(0, begin, tokens).copy_(by_head.unflatten(0, {-1, group}).sum(1).transpose(0, 1));
    };
    write(dq, at::matmul(dscores, document.k));
    write(dk, at::matmul(dscores.transpose(1, 2), document.q));
    write(dv, at::matmul(shares.transpose(1, 2), rows(dy)));
  });
  return {dq, dk, dv};
}

// While it lives the host has the call.
class CallOnTheHost {
 public:
  CallOnTheHost() : library_(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, 0) {
    library_.impl("_flash_attention_forward", Forward);
    library_.impl("_flash_attention_backward", Backward);
    calls = {};
  }

 private:
  torch::Library library_;
};

// The result, then the gradients of q, k and v for a fixed gradient.
template <class Attend>
Tensors ResultAndGradients(const Tensors& qkv, const Attend& attend) {
  const at::Tensor y = attend(qkv[0], qkv[1], qkv[2]).flatten(2);
  const at::Tensor dy = at::sin(at::arange(y.numel(), at::kDouble)).view_as(y).to(y.options());
  Tensors all = torch::autograd::grad({y}, qkv, {dy});
  all.insert(all.begin(), y.detach());
  return all;
}

TEST(AttendAtOnceTest, IsTheDocumentsOneByOneByOneCallEachWay) {
  at::manual_seed(5);
  const CallOnTheHost here;
  for (const Lengths& lengths :
       {Lengths{37, 1, 10, 48}, Lengths{48, 48}, Lengths{1, 1, 46, 13, 7, 28}}) {
    for (const int64_t kv_heads : {6, 2, 1}) {
      SCOPED_TRACE(std::to_string(lengths.size()) + " documents, " + std::to_string(kv_heads) +
                   " heads of keys");
      const Tensors qkv = {RandomLeaf({2, 48, 6, 8}, at::kDouble),
                           RandomLeaf({2, 48, kv_heads, 8}, at::kDouble),
                           RandomLeaf({2, 48, kv_heads, 8}, at::kDouble)};
      const Tensors expected = ResultAndGradients(qkv, [&](auto... heads) {
        const AttentionCall call{.backend = AttentionBackend::kMath, .document_lengths = lengths};
        return CausalAttention(heads..., call).unsqueeze(2);
      });
      const auto documents = static_cast<int64_t>(lengths.size());
      for (const int64_t entries : {documents, documents + 3}) {  // Without and with empty ones.
        calls = {};
        const at::Tensor offsets = DocumentOffsets(Positions(lengths, 48), entries);
        const Tensors got =
            ResultAndGradients(qkv, [&](auto... heads) { return AttendAtOnce(heads..., offsets); });
        EXPECT_EQ(calls.forward, 1);
        EXPECT_EQ(calls.backward, 1);
        for (size_t i = 0; i < got.size(); ++i) {  // Sums of 48 in another order.
          ASSERT_EQ(got[i].sizes(), expected[i].sizes());
          EXPECT_LT(Distance(got[i], expected[i]), 1e-12) << i;
        }
      }
    }
  }
}

TEST(AttendAtOnceTest, TakesHeadsThatArePartsOfAProjection) {
  at::manual_seed(6);
  const CallOnTheHost here;
  const at::Tensor projected = RandomLeaf({2, 16, 3 * 4 * 8}, at::kDouble);
  const at::Tensor offsets = DocumentOffsets(Positions({9, 7, 16}, 16), 3);
  const auto result = [&](const auto& attend) {
    const auto parts = projected.unflatten(-1, {-1, 8}).chunk(3, 2);
    const at::Tensor y = attend(parts[0], parts[1], parts[2]).flatten(2);
    return Tensors{y.detach(), torch::autograd::grad({y.square().sum()}, {projected})[0]};
  };
  const Tensors got = result([&](auto... heads) {
    const Tensors all = {heads...};
    EXPECT_FALSE(all[2].is_contiguous());
    return AttendAtOnce(heads..., offsets);
  });
  const Lengths lengths = {9, 7, 16};
  const Tensors expected = result([&](auto... heads) {
    const AttentionCall call{.backend = AttentionBackend::kMath, .document_lengths = lengths};
    return CausalAttention(heads..., call).unsqueeze(2);
  });
  EXPECT_LT(Distance(got[0], expected[0]), 1e-12);
  EXPECT_LT(Distance(got[1], expected[1]), 1e-12);
}

TEST(AttendAtOnceTest, BackwardIsDeterministicWhereTheProcessAsksForItIfOnlyByWarnings) {
  const CallOnTheHost here;
  at::Context& context = at::globalContext();
  struct Setting {
    bool deterministic;
    bool warn_only;
  };
  for (const Setting setting : {Setting{false, false}, Setting{true, true}, Setting{true, false}}) {
    context.setDeterministicAlgorithms(setting.deterministic, setting.warn_only);
    const Tensors qkv(3, RandomLeaf({1, 8, 2, 8}, at::kDouble));
    ResultAndGradients(qkv, [&](auto... heads) {
      return AttendAtOnce(heads..., DocumentOffsets(Positions({3, 5}, 8), 2));
    });
    EXPECT_EQ(calls.strict, setting.deterministic);
    EXPECT_EQ(context.deterministicAlgorithms(), setting.deterministic);
    EXPECT_EQ(context.deterministicAlgorithmsWarnOnly(), setting.warn_only);
  }
  context.setDeterministicAlgorithms(false, false);
}

TEST(CausalAttentionTest, OnTheHostDocumentsAreOneCallEach) {
  const CallOnTheHost here;
  const Lengths lengths = {20, 44};
  const at::Tensor offsets = DocumentOffsets(Positions(lengths, 64), 2);
  const at::Tensor q = RandomLeaf({1, 64, 2, 8}, at::kBFloat16);
  for (const auto backend : {AttentionBackend::kAuto, AttentionBackend::kFlash}) {
    CausalAttention(q, q, q,
                    {.backend = backend, .document_lengths = lengths, .document_offsets = offsets});
  }
  EXPECT_EQ(calls.forward, 0);
}

}  // namespace
}  // namespace gpt_documents_test
