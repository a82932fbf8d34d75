// Recomputation in backward: same bits, less memory, in an engine and without one.
#include "dtrain/recompute.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "dtrain/engine.h"
#include "runtime/optimizer/engine_state.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "torch/nn/module.h"

namespace dtrain::recompute_test {
namespace {

using Tensors = std::vector<at::Tensor>;

// Five layers with dropout, of which some are recomputed. With four weights the first and the last
// share one.
class Net : public torch::nn::Module {
 public:
  explicit Net(int64_t recomputed, int64_t weights = 5) : recomputed_(recomputed) {
    for (int64_t i = 0; i < weights; ++i) {
      weights_.push_back(register_parameter("w" + std::to_string(i), at::randn({12, 12}) * 0.3));
    }
  }
  at::Tensor Loss(const at::Tensor& rows) {
    at::Tensor h = rows;
    for (int64_t i = 0; i < 5; ++i) {
      const auto layer = [this, i](const at::Tensor& x) {
        ++runs;
        const at::Tensor& weight = weights_[static_cast<size_t>(i) % weights_.size()];
        return x + at::dropout(at::tanh(x.matmul(weight)), 0.3, is_training());
      };
      h = i < recomputed_ ? Recompute(layer, h) : layer(h);
    }
    return h.square().sum();
  }
  int64_t runs = 0;

 private:
  int64_t recomputed_;
  std::vector<at::Tensor> weights_;
};

std::vector<double> Numbers(int64_t recomputed, int stage) {
  at::set_num_threads(1);
  const testing::TempFolder folder;
  auto job = testing::MakeTestJob(
      {.run_dir = folder.path(),
       .overrides = {"train_micro_batch_size_per_gpu=1", "gradient_accumulation_steps=2",
                     "zero_optimization.stage=" + std::to_string(stage)}});
  EXPECT_TRUE(job.ok()) << job.status();
  at::manual_seed(5);
  Net net(recomputed);
  auto engine = Engine::Create(**job, net);
  EXPECT_TRUE(engine.ok()) << engine.status();
  struct Source {
    absl::StatusOr<at::Tensor> Next() { return at::randn({7, 12}); }
  } source;
  std::vector<double> numbers;
  for (int step = 0; step < 4; ++step) {
    const auto report = (*engine)->Step(
        source, [&](const at::Tensor& rows) { return Loss(net.Loss(rows), rows.size(0)); });
    EXPECT_TRUE(report.ok()) << report.status();
    numbers.push_back(report->loss);
    numbers.push_back(report->grad_norm);
  }
  // Each micro-batch runs the five layers, and those recomputed twice.
  EXPECT_EQ(net.runs, 4 * 2 * (5 + recomputed));
  return numbers;
}

TEST(RecomputeTest, TrainsToTheBitAsWithoutItDropoutIncluded) {
  const std::vector<double> plain = Numbers(0, 0);
  for (const int64_t recomputed : {1, 3, 5}) {
    EXPECT_EQ(Numbers(recomputed, 0), plain) << recomputed << " layers";
  }
  EXPECT_EQ(Numbers(4, 3), Numbers(0, 3));
}

TEST(RecomputeTest, AWeightThatTwoSegmentsShareIsRefusedByNameNotSummedInPart) {
  for (const int stage : {0, 1, 2, 3}) {
    const testing::TempFolder folder;
    auto job = testing::MakeTestJob(
        {.run_dir = folder.path(),
         .overrides = {"train_batch_size=1", "zero_optimization.stage=" + std::to_string(stage)}});
    Net net(5, 4);
    auto engine = Engine::Create(**job, net);
    ASSERT_TRUE(engine.ok()) << engine.status();
    const absl::Status status =
        (*engine)->Backward(Loss(net.Loss(at::ones({2, 12})), 2), {.last_micro_batch = true});
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << stage;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("w0 came twice"));
  }
}

TEST(RecomputeTest, ASegmentOfSeveralTensorsGivesTheSameGradients) {
  at::manual_seed(2);
  const at::Tensor a = at::randn({3, 4}).requires_grad_();
  const at::Tensor b = at::randn({3, 4}).requires_grad_();
  const at::Tensor ids = at::tensor({2, 0, 1}, at::kLong);
  const auto segment = [](const Tensors& in) {
    return Tensors{in[0].mul(in[1]).sin(), in[1].index_select(0, in[2]), in[0].exp()};
  };
  const auto loss_of = [](const Tensors& out) { return (out[0] + out[1].square()).sum(); };
  loss_of(segment({a, b, ids})).backward();
  const Tensors expected = {a.grad().clone(), b.grad().clone()};
  a.mutable_grad().reset();
  b.mutable_grad().reset();
  loss_of(RecomputeSegment(segment, {a, b, ids})).backward();  // The third output is not used.
  EXPECT_TRUE(a.grad().equal(expected[0]));
  EXPECT_TRUE(b.grad().equal(expected[1]));
}

TEST(RecomputeTest, ParametersGetGradientsThoughNoInputNeedsOne) {
  const at::Tensor table = at::randn({9, 4}).requires_grad_();
  const at::Tensor ids = at::tensor({2, 0, 1}, at::kLong);
  Recompute([table](const at::Tensor& tokens) { return at::embedding(table, tokens); }, ids)
      .sum()
      .backward();
  EXPECT_EQ(table.grad().sum().item<double>(), 12.0);
}

TEST(RecomputeTest, ASegmentsGraphIsNotKept) {
  // Tensors that the segment saves for backward are freed after its first run; only the test still
  // holds `inside`.
  at::Tensor inside;
  const at::Tensor x = at::randn({4}).requires_grad_();
  const at::Tensor y = Recompute(
      [&](const at::Tensor& in) {
        inside = in.exp();
        return inside.sin();
      },
      x);
  EXPECT_FALSE(inside.requires_grad());
  EXPECT_EQ(inside.use_count(), 1U);
  y.sum().backward();
  EXPECT_TRUE(x.grad().allclose(x.exp().cos() * x.exp()));
}

TEST(RecomputeTest, ASecondBackwardIsLibTorchsError) {
  const at::Tensor x = at::ones({4}).requires_grad_();
  const at::Tensor y = Recompute([](const at::Tensor& in) { return in.exp(); }, x).sum();
  y.backward();
  EXPECT_THROW(y.backward(), std::exception);
}

TEST(RecomputeTest, WithoutGradientsItJustRuns) {
  const at::NoGradGuard no_grad;
  int runs = 0;
  const at::Tensor y = Recompute(
      [&](const at::Tensor& in) {
        ++runs;
        return in + 1;
      },
      at::zeros({2}));
  EXPECT_EQ(runs, 1);
  EXPECT_FALSE(y.requires_grad());
}

TEST(RecomputeTest, WhatASegmentThrowsComesOut) {
  const at::Tensor x = at::zeros({2}).requires_grad_();
  EXPECT_THROW(
      Recompute([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("no"); }, x),
      std::runtime_error);
}

}  // namespace
}  // namespace dtrain::recompute_test
