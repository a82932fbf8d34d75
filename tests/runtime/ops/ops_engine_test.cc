// Fused operations in an engine: ZeRO stage 3, whose weights are there only while an operation that
// announces itself reads them, and Recompute give the bits of stage 0.
#include <gtest/gtest.h>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "dtrain/engine.h"
#include "dtrain/ops.h"
#include "dtrain/recompute.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/nn/module.h"

namespace dtrain::ops_engine_test {
namespace {

constexpr int64_t kHidden = 32;
constexpr int64_t kHeads = 2;

struct BlockWeights {
  at::Tensor v, k, q, up, gate, down, rms, layer, bias;
  at::Tensor wide, narrow, wide_bias, narrow_bias;  // The weights of GPT-2's MLP.
};

// Two blocks that use every kind of fused operation, with weights of their own; no attention.
class Net : public torch::nn::Module {
 public:
  explicit Net(bool recompute)
      : recompute_(recompute), table_(ops::MakeRopeTable(7, kHidden / kHeads, 10'000)) {
    for (const std::string block : {"first_", "second_"}) {
      const auto weight = [&](const std::string& name, at::IntArrayRef sizes) {
        return register_parameter(block + name, at::randn(sizes).mul(0.3));
      };
      blocks_.push_back(
          {weight("v", {kHidden, kHidden}), weight("k", {kHidden, kHidden}),
           weight("q", {kHidden, kHidden}), weight("up", {2 * kHidden, kHidden}),
           weight("gate", {2 * kHidden, kHidden}), weight("down", {2 * kHidden, kHidden}),
           weight("rms", {kHidden}), weight("layer", {kHidden}), weight("bias", {kHidden}),
           weight("wide", {kHidden, 3 * kHidden}), weight("narrow", {3 * kHidden, kHidden}),
           weight("wide_bias", {3 * kHidden}), weight("narrow_bias", {kHidden})});
    }
    last_ = register_parameter("last", at::randn({kHidden}));
  }
  at::Tensor Loss(const at::Tensor& x) {
    at::Tensor h = x;
    for (const BlockWeights& weights : blocks_) {
      const auto run = [this, &weights](const at::Tensor& in) { return Block(in, weights); };
      h = recompute_ ? Recompute(run, h) : run(h);
    }
    return ops::RmsNorm(h, last_, 1e-6).square().sum();
  }

 private:
  at::Tensor Block(const at::Tensor& x, const BlockWeights& w) {
    const at::Tensor normal = ops::LayerNorm(x, w.layer, w.bias, 1e-5);
    const ops::Qkv parts =
        ops::RopeQkv(ops::MergedLinear(normal, {w.q, w.k, w.v}), kHeads, kHeads, table_);
    const at::Tensor mixed = (parts.q * parts.k + parts.v).flatten(-2);
    const ops::NormOfSum first = ops::AddRmsNorm(mixed, x, w.rms, 1e-6);
    const at::Tensor gated = ops::SwiGlu(ops::MergedLinear(first.y, {w.gate, w.up})).matmul(w.down);
    const ops::NormOfSum second = ops::AddLayerNorm(gated, first.sum, w.layer, w.bias, 1e-5);
    const at::Tensor mlp = ops::GeluMlp(second.y, w.wide, w.narrow, {w.wide_bias, w.narrow_bias});
    return second.sum + ops::Gelu(mlp, ops::GeluForm::kTanh);
  }
  bool recompute_;
  ops::RopeTable table_;
  std::vector<BlockWeights> blocks_;
  at::Tensor last_;
};

std::vector<double> Numbers(bool recompute, int stage) {
  at::set_num_threads(1);
  const testing::TempFolder folder;
  auto job = testing::MakeTestJob(
      {.run_dir = folder.path(),
       .overrides = {"train_micro_batch_size_per_gpu=1", "gradient_accumulation_steps=2",
                     "deterministic=true", "zero_optimization.stage=" + std::to_string(stage)}});
  EXPECT_TRUE(job.ok()) << job.status();
  at::manual_seed(5);
  Net net(recompute);
  auto engine = Engine::Create(**job, net);
  EXPECT_TRUE(engine.ok()) << engine.status();
  struct Source {
    absl::StatusOr<at::Tensor> Next() { return at::randn({2, 7, kHidden}); }
  } source;
  std::vector<double> numbers;
  for (int step = 0; step < 4; ++step) {
    const auto report = (*engine)->Step(
        source, [&](const at::Tensor& rows) { return Loss(net.Loss(rows), rows.size(0)); });
    EXPECT_TRUE(report.ok()) << report.status();
    numbers.push_back(report->loss);
    numbers.push_back(report->grad_norm);
  }
  return numbers;
}

TEST(OpsEngineTest, Stage3AndRecomputeGiveTheBitsOfStage0) {
  const std::vector<double> plain = Numbers(false, 0);
  EXPECT_EQ(Numbers(true, 0), plain);
  EXPECT_EQ(Numbers(false, 3), plain);
  EXPECT_EQ(Numbers(true, 3), plain);
}

class Pair : public torch::nn::Module {
 public:
  Pair() {
    second = register_parameter("second", at::randn({kHidden, kHidden}));
    first = register_parameter("first", at::randn({kHidden, kHidden}));
  }
  at::Tensor Loss(const at::Tensor& x) {
    return ops::MergedLinear(x, {first, second}).square().sum();
  }
  at::Tensor first, second;
};

// Backward writes where the engine keeps gradients; what a loss asks for itself is its own.
TEST(OpsEngineTest, GradientsThatALossTakesAreNotTheEnginesMemory) {
  const testing::TempFolder folder;
  auto job = testing::MakeTestJob(
      {.run_dir = folder.path(),
       .overrides = {"train_micro_batch_size_per_gpu=1", "gradient_accumulation_steps=2"}});
  ASSERT_TRUE(job.ok()) << job.status();
  Pair net;
  auto engine = Engine::Create(**job, net);
  ASSERT_TRUE(engine.ok()) << engine.status();
  struct Source {
    absl::StatusOr<at::Tensor> Next() { return at::randn({3, kHidden}); }
  } source;
  std::vector<at::Tensor> taken;
  std::vector<at::Tensor> copies;
  const auto report = (*engine)->Step(source, [&](const at::Tensor& x) {
    const at::Tensor loss = net.Loss(x);
    for (const at::Tensor& gradient :
         torch::autograd::grad({loss}, {net.first, net.second}, {}, /*retain_graph=*/true)) {
      taken.push_back(gradient);
      copies.push_back(gradient.clone());
    }
    return Loss(loss, x.size(0));
  });
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_EQ(taken.size(), 4U);
  for (size_t i = 0; i < taken.size(); ++i) {
    EXPECT_TRUE(taken[i].equal(copies[i])) << i;
  }
}

// One weight before, in and after a recomputed segment: its backward runs inside the other's.
class Shared : public torch::nn::Module {
 public:
  explicit Shared(bool recompute) : recompute_(recompute) {
    first_ = register_parameter("first", at::randn({kHidden, kHidden}).mul(0.1));
    shared = register_parameter("shared", at::randn({kHidden, kHidden}).mul(0.1));
  }
  at::Tensor Loss(const at::Tensor& x) {
    const auto layer = [this](const at::Tensor& in) {
      return ops::MergedLinear(in, {shared}).tanh();
    };
    const at::Tensor h = layer(ops::MergedLinear(x, {first_}));
    return layer(recompute_ ? Recompute(layer, h) : layer(h)).square().sum();
  }
  at::Tensor shared;

 private:
  bool recompute_;
  at::Tensor first_;
};

at::Tensor SharedAfterSteps(bool recompute) {
  const testing::TempFolder folder;
  auto job = testing::MakeTestJob(
      {.run_dir = folder.path(),
       .overrides = {"train_micro_batch_size_per_gpu=1", "gradient_accumulation_steps=2",
                     R"(optimizer={"type":"SGD","params":{"lr":0.05}})"}});
  EXPECT_TRUE(job.ok()) << job.status();
  at::manual_seed(5);
  Shared net(recompute);
  auto engine = Engine::Create(**job, net);
  EXPECT_TRUE(engine.ok()) << engine.status();
  struct Source {
    absl::StatusOr<at::Tensor> Next() { return at::randn({3, kHidden}); }
  } source;
  for (int step = 0; step < 3; ++step) {
    const auto report =
        (*engine)->Step(source, [&](const at::Tensor& x) { return Loss(net.Loss(x), x.size(0)); });
    EXPECT_TRUE(report.ok()) << report.status();
  }
  return net.shared.detach().clone();
}

TEST(OpsEngineTest, AGradientThatWaitsForAnInnerBackwardIsNotOverwritten) {
  const at::Tensor plain = SharedAfterSteps(false);
  const at::Tensor again = SharedAfterSteps(true);
  EXPECT_LT((plain - again).abs().max().item<double>(), 1e-6);
}

}  // namespace
}  // namespace dtrain::ops_engine_test
