// Steps that cannot be taken: gradients that are never finite end the run with one line that names
// what went bad first, and an engine that cannot go on says so to every later call.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/status.h"
#include "comm/work_state.h"
#include "dtrain/engine.h"
#include "runtime/job/job_state.h"
#include "runtime/optimizer/engine_state.h"
#include "tests/runtime/testing/chain_for_tests.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "tests/testing/passing_group.h"
#include "torch/nn/module.h"

namespace dtrain::engine_failed_steps_test {
namespace {

using testing::Chain;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::RankContext;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Precision {
  const char* name;
  std::vector<std::string> overrides;
  int64_t steps;     // Skipped ones, before the one that ends the run.
  const char* says;  // The message of the step that ends the run.
};

std::vector<Precision> Precisions() {
  return {
      {"fp32", {}, 19, "20 steps in a row had a gradient that is not finite, up to step 20 "},
      {"bf16",
       {"bf16.enabled=true"},
       19,
       "20 steps in a row had a gradient that is not finite, up to step 20 "},
      {"fp16",  // From 2 over 1, where the scale can fall no more.
       {"fp16.enabled=true", "fp16.initial_scale_power=1", "fp16.hysteresis=1"},
       1,
       "is not finite at the smallest loss scale either, 1 "},
      {"fp16fixed",
       {"fp16.enabled=true", "fp16.loss_scale=8"},
       19,
       "20 steps in a row had a gradient that is not finite, up to step 20 "},
  };
}

struct Way {
  int ranks, stage;
};

std::vector<Way> Ways() { return {{1, 0}, {2, 0}, {2, 1}, {2, 2}, {2, 3}}; }

class NeverFinite : public ::testing::TestWithParam<std::tuple<Precision, Way>> {};

INSTANTIATE_TEST_SUITE_P(All, NeverFinite,
                         ::testing::Combine(::testing::ValuesIn(Precisions()),
                                            ::testing::ValuesIn(Ways())),
                         [](const auto& test) {
                           const Way& way = std::get<1>(test.param);
                           return absl::StrCat(std::get<0>(test.param).name, "_ranks", way.ranks,
                                               "_stage", way.stage);
                         });

// Says what is wrong with `end`; empty: nothing.
std::vector<std::string> Differences(const absl::Status& end, const Precision& precision,
                                     int64_t skipped) {
  std::vector<std::string> wrong;
  const std::string text(end.message());
  const auto want = [&](bool good, const std::string& what) {
    if (!good) {
      wrong.push_back(absl::StrCat(what, ": ", end.ToString()));
    }
  };
  want(skipped == precision.steps, absl::StrCat(skipped, " steps before the end"));
  want(end.code() == absl::StatusCode::kFailedPrecondition, "code");
  want(ExitCodeFor(end) == kExitUsage, "exit code");
  want(text.find('\n') == std::string::npos, "one line");
  want(text.find(precision.says) != std::string::npos, "what");
  want(text.find("(first weight2 in step 1, where the loss was nan)") != std::string::npos,
       "what went bad first");
  want(text.find("the first weights, which no step changed") != std::string::npos, "what to do");
  want(text.find("optimizer.params.lr") == std::string::npos, "no rate has changed a weight");
  return wrong;
}

absl::Status TrainOnNan(RankContext& context, const Precision& precision, const Way& way) {
  at::set_num_threads(1);
  const testing::TempFolder folder;
  DT_ASSIGN_OR_RETURN(auto job,
                      testing::MakeChainJob(&context, folder.path(),
                                            {.stage = way.stage, .more = precision.overrides}));
  at::manual_seed(3);
  Chain model;
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
  const auto weights = [&] {
    std::string bytes;
    engine
        ->WithParameters([&] {
          for (const at::Tensor& parameter : model.parameters()) {
            const at::Tensor copy = parameter.detach().clone();
            bytes.append(static_cast<const char*>(copy.const_data_ptr()), copy.nbytes());
          }
        })
        .IgnoreError();
    return bytes;
  };
  const std::string before = weights();
  std::string last = before;
  testing::Tokens source{.rank = context.rank, .size = context.size};
  absl::Status end;
  int64_t skipped = 0;
  while (end.ok() && skipped < 100) {
    // One rank's data is bad, and one weight's gradient in the first step; then two.
    const auto report = engine->Step(source, [&](const at::Tensor& tokens) -> Loss {
      at::Tensor loss = model.Loss(tokens);
      if (context.rank == context.size - 1) {
        loss = loss + (model.weights[2].to(at::kFloat) * kNan).sum();
        if (skipped > 0) {
          loss = loss + (model.weights[5].to(at::kFloat) * kNan).sum();
        }
      }
      return {loss, tokens.size(0)};
    });
    end = report.status();
    if (report.ok()) {
      last = weights();
      ++skipped;
    }
  }
  std::vector<std::string> wrong = Differences(end, precision, skipped);
  if (before.empty() || last != before || engine->state().progress.updates != 0) {
    wrong.emplace_back("weights changed");
  }
  const auto loss = [&](const at::Tensor& tokens) -> Loss {
    return {model.Loss(tokens), tokens.size(0)};
  };
  for (const absl::Status& later :
       {engine->Step(source, loss).status(), engine->Update().status(),
        engine->Backward(Loss(model.biases[0].sum())), engine->Evaluate(source, loss).status(),
        engine->WithParameters([] {})}) {
    const std::string text(later.message());
    if (later.code() != absl::StatusCode::kFailedPrecondition ||
        text.find("cannot go on after the step that failed before") == std::string::npos ||
        text.find("start it again") == std::string::npos) {
      wrong.push_back(absl::StrCat("a later call: ", later.ToString()));
    }
  }
  return wrong.empty() ? absl::OkStatus() : absl::InternalError(absl::StrJoin(wrong, "; "));
}

TEST_P(NeverFinite, EndsTheRunByTheNameOfWhatWentBadFirst) {
  const auto& [precision, way] = GetParam();
  for (const auto& result :
       testing::RunRanks({.size = way.ranks}, [&](RankContext& context) -> absl::Status {
         return TrainOnNan(context, precision, way);
       })) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

class FailedStep : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Stages, FailedStep, ::testing::Values(0, 1, 2, 3));

// The rank that fails and the one that hears of it alike.
TEST_P(FailedStep, OfOneRankEndsTheStepsOfAllWithWhatToDo) {
  const auto results = testing::RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
    at::set_num_threads(1);
    const testing::TempFolder folder;
    DT_ASSIGN_OR_RETURN(auto job,
                        testing::MakeChainJob(&context, folder.path(), {.stage = GetParam()}));
    Chain model;
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
    testing::Tokens source{.rank = context.rank, .size = context.size};
    int calls = 0;
    const auto loss = [&](const at::Tensor& tokens) -> Loss {
      if (context.rank == 1 && ++calls == 3) {
        throw std::runtime_error("on purpose");
      }
      return {model.Loss(tokens), tokens.size(0)};
    };
    absl::Status first;
    while (first.ok()) {
      first = engine->Step(source, loss).status();
    }
    if (engine->step() != 2) {
      return absl::InternalError(absl::StrCat("failed after step ", engine->step()));
    }
    if (first.code() == absl::StatusCode::kFailedPrecondition) {
      return absl::InternalError("the failure itself: " + first.ToString());
    }
    const absl::Status second = engine->Step(source, loss).status();
    return second == engine->Step(source, loss).status() ? second : absl::InternalError("changes");
  });
  for (const auto& result : results) {
    EXPECT_EQ(result.status.code(), absl::StatusCode::kFailedPrecondition) << result.status;
    const std::string text(result.status.message());
    EXPECT_THAT(text, HasSubstr("cannot go on after the step that failed before ("));
    EXPECT_THAT(text, HasSubstr("end the program on all ranks and start it again"));
    EXPECT_THAT(text, Not(HasSubstr("\n")));
  }
  EXPECT_THAT(std::string(results[1].status.message()), HasSubstr("on purpose"));
  EXPECT_THAT(std::string(results[0].status.message()), ContainsRegex("rank 1|on rank 1"));
}

class StepWithoutTarget : public ::testing::TestWithParam<Way> {};

INSTANTIATE_TEST_SUITE_P(All, StepWithoutTarget, ::testing::ValuesIn(Ways()), [](const auto& test) {
  return absl::StrCat("ranks", test.param.ranks, "_stage", test.param.stage);
});

// Neither momentum nor decay moves a weight; the step counts and the run goes on.
TEST_P(StepWithoutTarget, IsSkippedAndManyInARowEndTheRun) {
  for (const auto& result :
       testing::RunRanks({.size = GetParam().ranks}, [](RankContext& context) -> absl::Status {
         at::set_num_threads(1);
         const testing::TempFolder folder;
         DT_ASSIGN_OR_RETURN(
             auto job, testing::MakeChainJob(&context, folder.path(),
                                             {.stage = GetParam().stage,
                                              .more = {"optimizer.params.weight_decay=0.1"}}));
         Chain model;
         DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
         testing::Tokens source{.rank = context.rank, .size = context.size};
         const auto sum = [&] {
           double value = 0;
           engine
               ->WithParameters([&] {
                 for (const at::Tensor& parameter : model.parameters()) {
                   value += parameter.to(at::kDouble).sum().item<double>();
                 }
               })
               .IgnoreError();
           return value;
         };
         const auto step = [&](bool counts) {
           return engine->Step(source, [&](const at::Tensor& tokens) -> Loss {
             // On two ranks one alone has targets: those suffice.
             const bool mine = counts && context.rank == context.size - 1;
             return {model.Loss(tokens), mine ? tokens.size(0) : 0};
           });
         };
         DT_RETURN_IF_ERROR(step(true).status());
         const double before = sum();
         DT_ASSIGN_OR_RETURN(const StepReport empty, step(false));
         if (!empty.skipped || !std::isnan(static_cast<double>(empty.loss)) || empty.step != 2 ||
             sum() != before) {
           return absl::InternalError(
               absl::StrCat("a step without a target: ", before, ", then ", sum()));
         }
         DT_ASSIGN_OR_RETURN(const StepReport next, step(true));
         if (next.skipped || sum() == before || engine->state().progress.updates != 2) {
           return absl::InternalError("the step behind it");
         }
         absl::Status end;
         int64_t empty_steps = 0;
         for (; end.ok() && empty_steps < 30; ++empty_steps) {
           end = step(false).status();
         }
         return empty_steps == 20 && absl::IsFailedPrecondition(end) &&
                        end.message().find(
                            "20 steps in a row, from step 4 to step 23, had no "
                            "target that counts") != std::string::npos
                    ? absl::OkStatus()
                    : absl::InternalError(absl::StrCat(empty_steps, ": ", end.ToString()));
       })) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

TEST(FiniteAgain, AGoodStepBetweenBadOnesCountsThemAnew) {
  const auto results = testing::RunRanks({.size = 1}, [](RankContext& context) -> absl::Status {
    at::set_num_threads(1);
    const testing::TempFolder folder;
    DT_ASSIGN_OR_RETURN(auto job, testing::MakeChainJob(&context, folder.path(), {.stage = 0}));
    Chain model;
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
    testing::Tokens source;
    for (int64_t step = 1; step <= 65; ++step) {
      const auto report = engine->Step(source, [&](const at::Tensor& tokens) -> Loss {
        const at::Tensor loss = model.Loss(tokens);
        return {step % 20 == 0 ? loss : loss * kNan, tokens.size(0)};
      });
      DT_RETURN_IF_ERROR(report.status());
    }
    return engine->state().progress.updates == 3 && engine->state().progress.skipped == 62
               ? absl::OkStatus()
               : absl::InternalError("updates");
  });
  EXPECT_TRUE(results[0].status.ok()) << results[0].status;
}

// Refuses collectives by the begin of their name: a rank on which one cannot start.
class RefusingGroup final : public testing::PassingGroup {
 public:
  RefusingGroup(std::unique_ptr<comm::Group> under, std::string name)
      : PassingGroup(*under), owned_(std::move(under)), name_(std::move(name)) {}
  absl::StatusOr<comm::Work> Broadcast(comm::Buffer buffer, int root,
                                       const comm::CollectiveOptions& options) override {
    DT_RETURN_IF_ERROR(Check(options));
    return PassingGroup::Broadcast(buffer, root, options);
  }
  absl::StatusOr<comm::Work> AllGather(comm::Buffer input, comm::Buffer output,
                                       const comm::CollectiveOptions& options) override {
    DT_RETURN_IF_ERROR(Check(options));
    return PassingGroup::AllGather(input, output, options);
  }

 private:
  absl::Status Check(const comm::CollectiveOptions& options) const {
    return absl::StartsWith(options.name, name_) ? absl::InternalError("refused on purpose")
                                                 : absl::OkStatus();
  }
  const std::unique_ptr<comm::Group> owned_;
  const std::string name_;
};

struct Refused {
  int stage;
  const char* collective;
};

// Two ranks, whose waits would last ten minutes. Rank 1 cannot start a collective behind the
// agreement of its first step; gives what each rank's training ends with.
std::vector<std::string> EndsWith(const Refused& refused) {
  std::vector<std::string> ends;
  const auto results = testing::RunRanks({.size = 2}, [&](RankContext& context) -> absl::Status {
    at::set_num_threads(1);
    const testing::TempFolder folder;
    DT_ASSIGN_OR_RETURN(
        auto job, testing::MakeChainJob(&context, folder.path(),
                                        {.stage = refused.stage, .more = {"comm.timeout_s=600"}}));
    if (context.rank == 1) {
      std::unique_ptr<comm::Group>& group = job->state().group;
      group = std::make_unique<RefusingGroup>(std::move(group), refused.collective);
    }
    at::manual_seed(3);
    Chain model;
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
    testing::Tokens source{.rank = context.rank, .size = context.size};
    absl::Status end;
    for (int i = 0; i < 3 && end.ok(); ++i) {
      end = engine
                ->Step(source,
                       [&](const at::Tensor& tokens) -> Loss {
                         return {model.Loss(tokens), tokens.size(0)};
                       })
                .status();
    }
    return end;
  });
  for (const auto& result : results) {
    ends.emplace_back(result.status.message());
  }
  return ends;
}

TEST(EngineFailedSteps, WhatFailsOnOneRankBehindTheAgreementEndsTheOthersAtOnce) {
  const int64_t begun = Clock::Real().MonotonicNanos();
  for (const Refused& refused : {Refused{0, "readiness order"}, Refused{1, "values of bucket"},
                                 Refused{2, "readiness order"}}) {
    const std::vector<std::string> ends = EndsWith(refused);
    ASSERT_EQ(ends.size(), 2U);
    EXPECT_THAT(ends[0], HasSubstr("step 1 failed on rank 1")) << refused.collective;
    EXPECT_THAT(ends[1], HasSubstr("refused on purpose")) << refused.collective;
  }
  const double seconds = static_cast<double>(Clock::Real().MonotonicNanos() - begun) * 1e-9;
  EXPECT_LT(seconds, 120) << "and not after a wait of ten minutes";
}

class FailedWork final : public comm::WorkState {
 public:
  absl::Status Wait(Deadline /*deadline*/) override {
    return absl::InternalError("the first reduction, on purpose");
  }
  bool Done() const override { return true; }
  int64_t DurationNanos() const override { return 0; }
};

// Its first reduction fails.
class FailingReduction final : public testing::PassingGroup {
 public:
  explicit FailingReduction(std::unique_ptr<comm::Group> under)
      : PassingGroup(*under), owned_(std::move(under)) {}
  absl::StatusOr<comm::Work> ReduceScatter(comm::Buffer input, comm::Buffer output,
                                           comm::ReduceOp op,
                                           const comm::CollectiveOptions& options) override {
    if (std::exchange(failed_, true)) {
      return PassingGroup::ReduceScatter(input, output, op, options);
    }
    return comm::Work(std::make_shared<FailedWork>());
  }

 private:
  const std::unique_ptr<comm::Group> owned_;
  bool failed_ = false;
};

// Two weights that a loss uses and one that it does not, a bucket each.
struct OneUnused : torch::nn::Module {
  at::Tensor unused = register_parameter("unused", at::ones({4096}));
  at::Tensor first = register_parameter("first", at::ones({4096}));
  at::Tensor second = register_parameter("second", at::ones({4096}));
};

// Stage 2 has two slots of buckets: the unused weight's zeros want the first one, whose reduction
// has failed by then.
TEST(EngineFailedSteps, AReductionThatFailsBeforeItsSlotIsUsedAgainFailsTheStep) {
  at::set_num_threads(1);
  const testing::TempFolder folder;
  auto job = *testing::MakeChainJob(
      nullptr, folder.path(), {.stage = 2, .more = {"zero_optimization.reduce_bucket_size=4096"}});
  std::unique_ptr<comm::Group>& group = job->state().group;
  group = std::make_unique<FailingReduction>(std::move(group));
  OneUnused model;
  auto engine = *Engine::Create(*job, model);
  testing::Tokens source;
  const auto report = engine->Step(source, [&](const at::Tensor& tokens) -> Loss {
    return {(model.first * model.second).sum(), tokens.size(0)};
  });
  EXPECT_EQ(report.status().code(), absl::StatusCode::kInternal) << report.status();
  EXPECT_THAT(std::string(report.status().message()), HasSubstr("the first reduction, on purpose"));
}

}  // namespace
}  // namespace dtrain::engine_failed_steps_test
