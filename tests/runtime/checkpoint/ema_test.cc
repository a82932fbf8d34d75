// An average of the weights at each ZeRO stage: by its formula, over a resume to the bit, and in
// another module.
#include "dtrain/ema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "ATen/core/grad_mode.h"
#include "base/status.h"
#include "dtrain/checkpointer.h"
#include "dtrain/engine.h"
#include "tests/runtime/testing/chain_for_tests.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "tests/runtime/testing/rank_numbers.h"

namespace dtrain::ema_test {
namespace {

using testing::Chain;
using ::testing::HasSubstr;
using testing::NumbersOf;
using testing::RankContext;

constexpr double kDecay = 0.75;

// Trains until step `until` from the newest checkpoint in the folder. Appends the distance of the
// average from the formula, which holds where no step was resumed, and then the average itself.
absl::Status Train(RankContext& context, const std::string& folder, int stage, int until,
                   std::vector<double>& numbers) {
  at::set_num_threads(1);
  DT_ASSIGN_OR_RETURN(
      auto job,
      testing::MakeChainJob(&context, folder, {.stage = stage, .more = {"checkpoint.interval=2"}}));
  at::manual_seed(4);
  Chain model;
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
  DT_ASSIGN_OR_RETURN(auto average, Ema::Create(*engine, model, kDecay));
  DT_ASSIGN_OR_RETURN(auto checkpoints, Checkpointer::Open(*job));
  checkpoints->Track("engine", *engine);
  checkpoints->Track("average", average->tensors());
  at::Tensor expected;
  DT_RETURN_IF_ERROR(
      engine->WithParameters([&] { expected = model.table.detach().to(at::kDouble).clone(); }));
  DT_RETURN_IF_ERROR(checkpoints->RestoreLatest());
  testing::Tokens source{.call = engine->step(), .rank = context.rank, .size = context.size};
  while (engine->step() < until) {
    DT_RETURN_IF_ERROR(TakeStep(*engine, model, source).status());
    DT_RETURN_IF_ERROR(average->Update());
    DT_RETURN_IF_ERROR(engine->WithParameters([&] {
      expected = expected * kDecay + model.table.detach().to(at::kDouble) * (1 - kDecay);
    }));
    DT_RETURN_IF_ERROR(checkpoints->MaybeSave(engine->step()));
  }
  DT_RETURN_IF_ERROR(checkpoints->Finish());
  const at::NoGradGuard no_grad;
  Chain other;
  DT_RETURN_IF_ERROR(average->CopyTo(other));
  numbers.push_back((other.table - expected).abs().max().item<double>());
  for (const at::Tensor& copied : other.parameters()) {
    numbers.push_back(copied.to(at::kDouble).square().sum().item<double>());
  }
  return absl::OkStatus();
}

struct Part {
  int stage = 0;
  int until = 0;
};

// The numbers behind the last of some trainings, each of which goes on where the one before ended.
std::vector<double> NumbersAfter(const std::vector<Part>& parts) {
  const testing::TempFolder folder;
  std::vector<double> numbers;
  for (const Part& part : parts) {
    numbers = NumbersOf(2, [&](RankContext& context, std::vector<double>& out) {
      return Train(context, folder.path(), part.stage, part.until, out);
    });
  }
  return numbers;
}

TEST(EmaTest, IsTheAverageOfItsFormulaAtEachStageAndGoesOnToTheBit) {
  std::vector<double> first;
  for (const int stage : {0, 1, 3}) {
    std::vector<double> straight = NumbersAfter({{stage, 4}});
    ASSERT_GT(straight.size(), 3U) << stage;
    EXPECT_LT(straight[0], 1e-6) << "fp32 sums of values of the order of 1, stage " << stage;
    straight.erase(straight.begin());
    first = first.empty() ? straight : first;
    EXPECT_EQ(straight, first) << stage;
  }
  std::vector<double> resumed = NumbersAfter({{1, 2}, {3, 4}});
  ASSERT_FALSE(resumed.empty());
  resumed.erase(resumed.begin());
  EXPECT_EQ(resumed, first);
}

struct Net : torch::nn::Module {
  explicit Net(int64_t width = 3) {
    weight = register_parameter("weight", at::ones({width}));
    frozen = register_parameter("frozen", at::ones({2}), /*requires_grad=*/false);
    mean = register_buffer("mean", at::ones({1}));
  }
  at::Tensor weight, frozen, mean;
};

TEST(EmaTest, AnotherModuleGetsWhatIsFrozenAndBuffersToo) {
  at::set_num_threads(1);
  const testing::TempFolder folder;
  auto job = *testing::MakeTestJob(
      {.run_dir = folder.path(), .overrides = {"train_micro_batch_size_per_gpu=1"}});
  Net net;
  auto engine = *Engine::Create(*job, net);
  auto average = *Ema::Create(*engine, net, 0.5);
  {
    const at::NoGradGuard no_grad;
    net.weight.fill_(3);
    net.frozen.fill_(7);
    net.mean.fill_(5);
  }
  ASSERT_TRUE(average->Update().ok());
  Net other;
  ASSERT_TRUE(average->CopyTo(other).ok());
  EXPECT_TRUE(at::equal(other.weight, at::full({3}, 2.0)));
  EXPECT_TRUE(at::equal(other.frozen, at::full({2}, 7.0)));
  EXPECT_TRUE(at::equal(other.mean, at::full({1}, 5.0)));
  EXPECT_TRUE(at::equal(net.weight, at::full({3}, 3.0)));
}

TEST(EmaTest, MistakesAreNamed) {
  at::set_num_threads(1);
  const testing::TempFolder folder;
  auto job = *testing::MakeTestJob(
      {.run_dir = folder.path(), .overrides = {"train_micro_batch_size_per_gpu=1"}});
  Net net;
  auto engine = *Engine::Create(*job, net);
  for (const double decay : {1.0, -0.1, std::nan("")}) {
    EXPECT_THAT(std::string(Ema::Create(*engine, net, decay).status().message()),
                HasSubstr("allowed: from 0 to below 1"));
  }
  auto average = *Ema::Create(*engine, net, 0.9);
  Net wide(4);
  EXPECT_THAT(std::string(average->CopyTo(wide).message()),
              HasSubstr("weight is [4] in the other module, and [3] in the engine's"));
  EXPECT_THAT(std::string(average->CopyTo(net).message()), HasSubstr("the engine's own"));
  struct Empty : torch::nn::Module {};
  Empty empty;
  EXPECT_THAT(std::string(average->CopyTo(empty).message()), HasSubstr("has no weight"));
}

}  // namespace
}  // namespace dtrain::ema_test
