// Fused operations in an engine: ZeRO stage 3, whose weights are there only while an operation that
// announces itself reads them, and Recompute give the bits of stage 0.
#include <gtest/gtest.h>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "dtrain/engine.h"
#include "dtrain/ops.h"
#include "dtrain/recompute.h"
#include "tests/runtime/job_for_tests.h"
#include "torch/nn/module.h"

namespace dtrain {
namespace {

constexpr int64_t kHidden = 32;
constexpr int64_t kHeads = 2;

struct BlockWeights {
  at::Tensor qkv, gate_up, down, rms, layer, bias;
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
      blocks_.push_back({weight("qkv", {kHidden, 3 * kHidden}),
                         weight("gate_up", {kHidden, 4 * kHidden}),
                         weight("down", {2 * kHidden, kHidden}), weight("rms", {kHidden}),
                         weight("layer", {kHidden}), weight("bias", {kHidden})});
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
    const ops::Qkv parts = ops::RopeQkv(normal.matmul(w.qkv), kHeads, kHeads, table_);
    const at::Tensor mixed = (parts.q * parts.k + parts.v).flatten(-2);
    const ops::NormOfSum first = ops::AddRmsNorm(mixed, x, w.rms, 1e-6);
    const at::Tensor gated = ops::SwiGlu(first.y.matmul(w.gate_up)).matmul(w.down);
    const ops::NormOfSum second = ops::AddLayerNorm(gated, first.sum, w.layer, w.bias, 1e-5);
    return second.sum + ops::Gelu(second.y, ops::GeluForm::kTanh);
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

}  // namespace
}  // namespace dtrain
