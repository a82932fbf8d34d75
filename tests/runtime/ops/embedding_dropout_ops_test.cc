// Embedding against ATen's, and dropout against what its own forward dropped.
#include "dtrain/ops.h"
#include "dtrain/recompute.h"
#include "tests/runtime/testing/ops_testing.h"

namespace dtrain::ops::embedding_dropout_ops_test {
namespace {

using testing::Distance;

TEST(EmbeddingTest, EqualsAtenForwardAndBackward) {
  at::manual_seed(3);
  const at::Tensor weight = at::randn({50, 24}).requires_grad_();
  const at::Tensor ids = at::randint(50, {4, 30}, at::kLong);
  const at::Tensor dy = at::randn({4, 30, 24});
  for (const int64_t padding_index : {-1, 3}) {
    const at::Tensor ours = Embedding(ids, weight, padding_index);
    const at::Tensor theirs = at::embedding(weight, ids, padding_index);
    EXPECT_TRUE(ours.equal(theirs));
    const auto g1 = torch::autograd::grad({ours}, {weight}, {dy});
    const auto g2 = torch::autograd::grad({theirs}, {weight}, {dy});
    EXPECT_LT(Distance(g1[0], g2[0]), 1e-6);
  }
  EXPECT_THROW(Embedding(at::full({2}, 50, at::kLong), weight), c10::Error);
}

TEST(DropoutTest, BackwardDropsWhatForwardDropped) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    at::manual_seed(4);
    const at::Tensor x = at::ones({37, 41}).to(dtype).requires_grad_();
    const at::Tensor y = Dropout(x, 0.25);
    const at::Tensor kept = y.ne(0);
    EXPECT_NEAR(kept.to(at::kFloat).mean().item<double>(), 0.75, 0.04);  // 3.6 sigma.
    EXPECT_TRUE(y.masked_select(kept).eq(at::full({}, 1 / 0.75).to(dtype)).all().item<bool>());
    (y * 3).sum().backward();
    EXPECT_TRUE(x.grad().ne(0).equal(kept));
    EXPECT_LT(Distance(x.grad(), y.detach() * 3), dtype == at::kFloat ? 1e-6 : 1e-2);
  }
}

TEST(DropoutTest, FollowsTheDefaultGenerator) {
  const at::Tensor x = at::ones({1000});
  at::manual_seed(5);
  const at::Tensor first = Dropout(x, 0.5);
  EXPECT_FALSE(Dropout(x, 0.5).equal(first));
  at::manual_seed(5);
  EXPECT_TRUE(Dropout(x, 0.5).equal(first));
  EXPECT_TRUE(Dropout(x, 0.5, /*training=*/false).is_same(x));
  EXPECT_TRUE(Dropout(x, 0).is_same(x));
  EXPECT_EQ(Dropout(x, 1).abs().sum().item<double>(), 0);
  EXPECT_THROW(Dropout(x, 1.5), c10::Error);
}

TEST(DropoutTest, AndEmbeddingRepeatInASegmentThatIsRecomputed) {
  const at::Tensor weight = at::randn({20, 16}).requires_grad_();
  const at::Tensor ids = at::randint(20, {40}, at::kLong);
  const auto segment = [&](const at::Tensor& tokens) {
    return Dropout(Embedding(tokens, weight), 0.5);
  };
  at::manual_seed(6);
  const at::Tensor plain = segment(ids);
  const at::Tensor expected = torch::autograd::grad({plain.square().sum()}, {weight})[0];
  at::manual_seed(6);
  const at::Tensor again = Recompute(segment, ids);
  EXPECT_TRUE(again.equal(plain));
  again.square().sum().backward();
  EXPECT_TRUE(weight.grad().equal(expected));
}

}  // namespace
}  // namespace dtrain::ops::embedding_dropout_ops_test
