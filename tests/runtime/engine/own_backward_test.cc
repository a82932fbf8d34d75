// Backwards of a program's own between an engine's steps: their gradients are the program's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "dtrain/engine.h"
#include "tests/runtime/testing/chain_for_tests.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "tests/runtime/testing/rank_numbers.h"

namespace dtrain::own_backward_test {
namespace {

using testing::Chain;
using testing::ChainWay;
using testing::MakeChainJob;
using testing::NumbersOf;
using testing::RankContext;
using testing::Tokens;

constexpr float kSlope = 1000;

// Its backward reads no weight, and so waits for none.
at::Tensor SlopeOfAll(const Chain& model) {
  at::Tensor sum = at::zeros({});
  for (const at::Tensor& parameter : model.parameters()) {
    sum = sum + kSlope * parameter.sum();
  }
  return sum;
}

absl::Status CheckSlopes(const Chain& model, const char* when) {
  for (const auto& item : model.named_parameters()) {
    const at::Tensor& gradient = item.value().grad();
    if (!gradient.defined() || !gradient.eq(kSlope).all().item<bool>()) {
      return absl::InternalError(absl::StrCat("the gradient of ", item.key(), " ", when));
    }
  }
  return absl::OkStatus();
}

// Three steps. With `own` the program goes backward between the last two, through a graph that is
// older than the step before.
absl::Status GoBackwardBetween(RankContext& context, int stage, bool own,
                               std::vector<double>& numbers) {
  at::set_num_threads(1);
  const testing::TempFolder folder;
  DT_ASSIGN_OR_RETURN(auto job, MakeChainJob(&context, folder.path(), {.stage = stage}));
  at::manual_seed(3);
  Chain model;
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
  Tokens source{.rank = context.rank, .size = context.size};
  const auto step = [&] { return TakeStep(*engine, model, source); };
  DT_RETURN_IF_ERROR(step().status());
  const at::Tensor slope = SlopeOfAll(model);
  DT_RETURN_IF_ERROR(step().status());
  if (own) {
    slope.backward();
    DT_RETURN_IF_ERROR(CheckSlopes(model, "behind its backward"));
    DT_RETURN_IF_ERROR(engine->WithParameters([] {}));
    DT_RETURN_IF_ERROR(CheckSlopes(model, "when weights were whole"));
  }
  DT_ASSIGN_OR_RETURN(const StepReport report, step());
  numbers.push_back(report.loss);
  numbers.push_back(report.grad_norm);
  return engine->WithParameters([&] {
    for (const at::Tensor& parameter : model.parameters()) {
      numbers.push_back(parameter.to(at::kDouble).square().sum().item<double>());
    }
  });
}

TEST(OwnBackwardTest, KeepsItsGradientsAndChangesNoStep) {
  for (const int stage : {0, 1, 2}) {
    std::vector<std::vector<double>> runs;
    for (const bool own : {false, true}) {
      runs.push_back(NumbersOf(2, [&](RankContext& context, std::vector<double>& numbers) {
        return GoBackwardBetween(context, stage, own, numbers);
      }));
    }
    ASSERT_GT(runs[0].size(), 10U);
    EXPECT_EQ(runs[1], runs[0]) << "stage " << stage;
  }
}

// The numbers of two steps. If `left`, gradients are left between them, one of them in a weight
// that no step uses.
std::vector<double> WithGradientsLeft(const ChainWay& way, bool left, bool zero_grad = false) {
  return NumbersOf(2, [&](RankContext& context, std::vector<double>& numbers) -> absl::Status {
    at::set_num_threads(1);
    const testing::TempFolder folder;
    DT_ASSIGN_OR_RETURN(auto job, MakeChainJob(&context, folder.path(), way));
    at::manual_seed(3);
    Chain model;
    EngineOptions options;
    options.zero_grad = zero_grad;
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model, options));
    Tokens source{.rank = context.rank, .size = context.size};
    Tokens others = source;
    for (int i = 0; i < 2; ++i) {
      if (left) {
        DT_ASSIGN_OR_RETURN(const at::Tensor tokens, others.Next());
        (model.Loss(tokens) + model.unused.square().sum()).backward();
      }
      DT_ASSIGN_OR_RETURN(const StepReport report, TakeStep(*engine, model, source));
      numbers.push_back(report.grad_norm);
    }
    return engine->WithParameters([&] {
      for (const at::Tensor& parameter : model.parameters()) {
        numbers.push_back(parameter.to(at::kDouble).square().sum().item<double>());
      }
    });
  });
}

TEST(OwnBackwardTest, AStepDropsWhatItLeavesAtEveryStage) {
  const std::vector<double> plain = WithGradientsLeft({.stage = 0}, /*left=*/false);
  ASSERT_GT(plain.size(), 10U);
  for (const int stage : {0, 1, 2, 3}) {
    EXPECT_EQ(WithGradientsLeft({.stage = stage}, /*left=*/true, /*zero_grad=*/true), plain)
        << "stage " << stage;
  }
}

TEST(OwnBackwardTest, WithoutZeroGradWhatItLeavesCountsInTheNextStepAtEveryStage) {
  const std::vector<double> plain = WithGradientsLeft({.stage = 0}, /*left=*/true);
  ASSERT_GT(plain.size(), 10U);
  EXPECT_NE(plain, WithGradientsLeft({.stage = 0}, /*left=*/false));
  for (const int stage : {1, 2, 3}) {
    EXPECT_EQ(WithGradientsLeft({.stage = stage}, /*left=*/true), plain) << "stage " << stage;
  }
}

// The numbers of two steps of two micro-batches. If `clears`, their closures clear gradients first,
// like the loops of other trainers.
std::vector<double> WithClearingClosures(int stage, bool clears) {
  const ChainWay way{.stage = stage, .accumulation = 2};
  return NumbersOf(2, [&](RankContext& context, std::vector<double>& numbers) -> absl::Status {
    at::set_num_threads(1);
    const testing::TempFolder folder;
    DT_ASSIGN_OR_RETURN(auto job, MakeChainJob(&context, folder.path(), way));
    at::manual_seed(3);
    Chain model;
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
    Tokens source{.rank = context.rank, .size = context.size, .accumulation = 2};
    for (int i = 0; i < 2; ++i) {
      DT_ASSIGN_OR_RETURN(const StepReport report,
                          engine->Step(source, [&](const at::Tensor& tokens) {
                            if (clears) {
                              model.zero_grad();
                            }
                            return Loss(model.Loss(tokens), tokens.size(0));
                          }));
      numbers.push_back(report.loss);
      numbers.push_back(report.grad_norm);
    }
    return absl::OkStatus();
  });
}

TEST(OwnBackwardTest, AClosureThatClearsGradientsLosesNoMicroBatch) {
  for (const int stage : {0, 1, 2, 3}) {
    const std::vector<double> plain = WithClearingClosures(stage, /*clears=*/false);
    ASSERT_EQ(plain.size(), 4U);
    EXPECT_EQ(WithClearingClosures(stage, /*clears=*/true), plain) << "stage " << stage;
  }
}

// Adds nothing to a loss; its backward may throw.
at::Tensor Nothing(const Chain& model, bool throws) {
  const at::Tensor half = model.weights[3] * 1;
  if (throws) {
    half.register_hook([](const at::Tensor& /*gradient*/) -> at::Tensor {
      throw std::runtime_error("no memory, on purpose");
    });
  }
  return 0 * half.sum();
}

// A backward that throws takes the step's earlier micro-batch with it, and the step is taken again.
TEST(OwnBackwardTest, AStepBeginsAnewAfterABackwardThatThrew) {
  at::set_num_threads(1);
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(absl::StrCat("stage ", stage));
    std::vector<double> losses, norms;
    for (const bool fails : {false, true}) {
      const testing::TempFolder folder;
      auto job = *MakeChainJob(nullptr, folder.path(), {.stage = stage, .accumulation = 2});
      at::manual_seed(3);
      Chain model;
      auto engine = *Engine::Create(*job, model);
      Tokens source{.accumulation = 2};
      const at::Tensor one = *source.Next();
      const at::Tensor two = *source.Next();
      const auto backward = [&](const at::Tensor& tokens, bool last) {
        return engine->Backward(Loss(model.Loss(tokens), tokens.size(0)),
                                {.last_micro_batch = last});
      };
      if (fails) {
        ASSERT_TRUE(backward(one, false).ok());
        const at::Tensor loss = model.Loss(two) + Nothing(model, /*throws=*/true);
        const absl::Status thrown = engine->Backward(Loss(loss, two.size(0)));
        EXPECT_THAT(std::string(thrown.message()), ::testing::HasSubstr("on purpose"));
      }
      ASSERT_TRUE(backward(one, false).ok());
      ASSERT_TRUE(backward(two, true).ok());
      const auto report = engine->Update();
      ASSERT_TRUE(report.ok()) << report.status();
      losses.push_back(report->loss);
      norms.push_back(report->grad_norm);
    }
    EXPECT_EQ(losses[0], losses[1]);
    EXPECT_EQ(norms[0], norms[1]);
  }
}

// A step cannot be undone when other ranks have part of it.
TEST(OwnBackwardTest, ABackwardThatThrowsOnOneOfTwoRanksEndsBoth) {
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(absl::StrCat("stage ", stage));
    const auto results = testing::RunRanks({.size = 2}, [&](RankContext& context) -> absl::Status {
      at::set_num_threads(1);
      const testing::TempFolder folder;
      DT_ASSIGN_OR_RETURN(auto job, MakeChainJob(&context, folder.path(), {.stage = stage}));
      at::manual_seed(3);
      Chain model;
      DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
      Tokens source{.rank = context.rank, .size = context.size};
      DT_ASSIGN_OR_RETURN(const at::Tensor tokens, source.Next());
      const at::Tensor loss = model.Loss(tokens);
      absl::Status ended =
          engine->Backward(Loss(loss + Nothing(model, context.rank == 0), tokens.size(0)));
      if (ended.ok()) {
        ended = engine->Update().status();
      }
      const absl::Status again = engine->Backward(Loss(loss, tokens.size(0)));
      const char* const said = context.rank == 0 ? "on purpose" : "rank 0";
      return absl::StrContains(ended.message(), said) &&
                     absl::StrContains(again.message(), "cannot go on")
                 ? absl::OkStatus()
                 : absl::InternalError(absl::StrCat(ended.message(), "; ", again.message()));
    });
    for (const auto& result : results) {
      EXPECT_TRUE(result.status.ok()) << result.status;
    }
  }
}

// Between two backwards of a step: what a program puts in place of the sum so far is the sum.
TEST(OwnBackwardTest, AGradientThatAProgramReplacesWithinAStepCountsOnce) {
  at::set_num_threads(1);
  for (const int stage : {0, 1}) {
    std::vector<double> norms;
    for (const bool replaces : {false, true}) {
      const testing::TempFolder folder;
      auto job = *MakeChainJob(nullptr, folder.path(), {.stage = stage, .accumulation = 2});
      at::manual_seed(3);
      Chain model;
      auto engine = *Engine::Create(*job, model);
      Tokens source{.accumulation = 2};
      for (const bool last : {false, true}) {
        const at::Tensor tokens = *source.Next();
        ASSERT_TRUE(
            engine->Backward(Loss(model.Loss(tokens), tokens.size(0)), {.last_micro_batch = last})
                .ok());
        for (const at::Tensor& parameter : model.parameters()) {
          if (replaces && !last && parameter.grad().defined()) {
            parameter.mutable_grad() = parameter.grad() * 1;
          }
        }
      }
      const auto report = engine->Update();
      ASSERT_TRUE(report.ok()) << report.status();
      norms.push_back(report->grad_norm);
    }
    EXPECT_EQ(norms[0], norms[1]) << "stage " << stage;
  }
}

}  // namespace
}  // namespace dtrain::own_backward_test
