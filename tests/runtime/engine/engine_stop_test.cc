// A stop signal before the first step, when there is nothing to save, and in a step of many
// micro-batches, which the ranks leave together.
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/status.h"
#include "dtrain/checkpointer.h"
#include "dtrain/engine.h"
#include "runtime/engine/stop_looks.h"
#include "runtime/job/stop_signal.h"
#include "tests/runtime/testing/chain_for_tests.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "tests/runtime/testing/rank_numbers.h"

namespace dtrain::engine_stop_test {
namespace {

using testing::Chain;
using testing::RankContext;

struct Tokens {
  absl::StatusOr<at::Tensor> Next() { return at::full({2}, 1, at::kLong); }
};

// Making an engine may take minutes, as reading a checkpoint may. There is nothing to save yet.
TEST(StopSignalBeforeTraining, EndsARankAtOnceAndIsNotedFromTheFirstStepOn) {
  for (const bool trains : {false, true}) {
    const auto results = testing::RunRanks({.size = 1}, [&](RankContext& context) -> absl::Status {
      at::set_num_threads(1);
      InstallStopSignals();
      const testing::TempFolder folder;
      DT_ASSIGN_OR_RETURN(auto job, testing::MakeChainJob(&context, folder.path(), {}));
      Chain model;
      DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
      if (trains) {
        Tokens source;
        const auto loss = [&](const at::Tensor& tokens) {
          return Loss(model.Loss(tokens), tokens.numel());
        };
        DT_RETURN_IF_ERROR(engine->Step(source, loss).status());
      }
      raise(SIGTERM);
      return absl::OkStatus();
    });
    EXPECT_EQ(results[0].status.ok(), trains) << results[0].status;
    EXPECT_EQ(results[0].exit_code, trains ? kExitOk : kExitTemporary);
  }
}

constexpr int kMicroBatches = 60;

// Another batch at each call, of which each rank takes its own.
class Counted final : public Tracked {
 public:
  explicit Counted(int rank) : rank_(rank) {}
  absl::StatusOr<at::Tensor> Next() { return at::full({2}, (3 * call_++ + rank_) % 7, at::kLong); }
  int64_t calls() const { return call_; }
  Json SaveState() const override { return {{"call", call_}}; }
  absl::Status RestoreState(const Json& state) override {
    call_ = state.at("call").get<int64_t>();
    return absl::OkStatus();
  }

 private:
  const int rank_;
  int64_t call_ = 0;
};

struct Stop {
  int in_step = 0;  // 0: none comes.
  int stage = 0;
  bool may_leave = true;
  bool with_another_engine = false;
};

absl::Status Expect(bool holds, const std::string& what) {
  return holds ? absl::OkStatus() : absl::InternalError(what);
}

// A training of two steps, as one rank sees it.
class Training {
 public:
  Training(RankContext& context, const Stop& stop)
      : context_(context), stop_(stop), source_(context.rank) {}

  absl::Status Make(const std::string& folder, const std::string& checkpoints) {
    DT_ASSIGN_OR_RETURN(
        job_, testing::MakeChainJob(&context_, folder,
                                    {.stage = stop_.stage,
                                     .accumulation = kMicroBatches,
                                     .more = {absl::StrCat("checkpoint.dir=", checkpoints)}}));
    EngineOptions options;
    options.may_leave_step = stop_.may_leave;
    DT_ASSIGN_OR_RETURN(engine_, Engine::Create(*job_, model_, options));
    if (stop_.with_another_engine) {
      DT_ASSIGN_OR_RETURN(another_, Engine::Create(*job_, another_model_, options));
    }
    DT_ASSIGN_OR_RETURN(checkpoints_, Checkpointer::Open(*job_));
    checkpoints_->Track("engine", *engine_);
    checkpoints_->Track("data", source_);
    return checkpoints_->RestoreLatest();
  }

  // The signal comes to the last rank alone, in the third micro-batch of its step.
  absl::StatusOr<StepReport> Step(int step) {
    calls_ = 0;
    auto report = engine_->Step(source_, [&](const at::Tensor& tokens) {
      absl::SleepFor(absl::Milliseconds(20));  // A micro-batch that lasts.
      if (++calls_ == 3 && step == stop_.in_step && context_.rank == context_.size - 1) {
        raise(SIGTERM);
      }
      return Loss(model_.Loss(tokens), tokens.numel());
    });
    if (report.ok()) {
      job_->metrics().Log(*report);
    }
    return report;
  }

  // All is as before the step that was left, and its end as the end of the step before.
  absl::Status ExpectLeft(const StepReport& report, int before) {
    DT_RETURN_IF_ERROR(Expect(report.stopped && report.skipped && std::isnan(double{report.loss}) &&
                                  report.step == before && engine_->step() == before,
                              absl::StrCat("a report of step ", report.step)));
    DT_RETURN_IF_ERROR(
        Expect(calls_ >= 3 && calls_ < kMicroBatches, absl::StrCat("left after ", calls_)));
    DT_RETURN_IF_ERROR(Expect(source_.calls() == before * kMicroBatches, "the data's position"));
    DT_RETURN_IF_ERROR(Expect(job_->stop_agreed() && job_->stop_signal() == SIGTERM, "the signal"));
    const absl::Status end = checkpoints_->MaybeSave(engine_->step());
    const std::string saved = absl::StrCat("after step ", before, ", which is saved");
    return Expect(absl::IsCancelled(end) && end.message().find(saved) != std::string::npos,
                  end.ToString());
  }

  Job& job() { return *job_; }
  int calls() const { return calls_; }

 private:
  RankContext& context_;
  const Stop stop_;
  Chain model_, another_model_;
  Counted source_;
  std::unique_ptr<Job> job_;
  std::unique_ptr<Engine> engine_, another_;
  std::unique_ptr<Checkpointer> checkpoints_;
  int calls_ = 0;
};

// The losses of two steps on `ranks` ranks, of which a program goes on after the step that is left.
std::vector<double> LossesWith(int ranks, const Stop& stop) {
  const testing::TempFolder shared;
  return testing::NumbersOf(
      ranks, [&](RankContext& context, std::vector<double>& numbers) -> absl::Status {
        at::set_num_threads(1);
        InstallStopSignals();
        const testing::TempFolder folder;
        at::manual_seed(5);  // The weights of all trainings here.
        Training training(context, stop);
        DT_RETURN_IF_ERROR(training.Make(folder.path(), absl::StrCat(shared.path(), "/saved")));
        for (int step = 1; step <= 2; ++step) {
          DT_ASSIGN_OR_RETURN(StepReport report, training.Step(step));
          const bool leaves = step == stop.in_step && stop.may_leave && !stop.with_another_engine;
          if (leaves) {
            DT_RETURN_IF_ERROR(training.ExpectLeft(report, step - 1));
            DT_ASSIGN_OR_RETURN(report, training.Step(0));
          }
          DT_RETURN_IF_ERROR(Expect(
              !report.stopped && training.calls() == kMicroBatches && report.step == step,
              absl::StrCat("step ", step, " ended after ", training.calls(), " micro-batches")));
          numbers.push_back(report.loss);
        }
        training.job().metrics().Flush();
        DT_ASSIGN_OR_RETURN(
            const std::string records,
            ReadFile(absl::StrCat(folder.path(), "/metrics/rank-", context.rank, ".jsonl")));
        size_t steps = 0;
        for (size_t at = 0; (at = records.find("time/step_s", at)) != std::string::npos; ++at) {
          ++steps;
        }
        return Expect(steps == 2, records);
      });
}

TEST(StopSignalInAStep, IsSeenWithinASecondAndTheStepLeavesNoTrace) {
  for (const int ranks : {1, 2}) {
    const std::vector<double> whole = LossesWith(ranks, {});
    ASSERT_EQ(whole.size(), 2U);
    EXPECT_EQ(LossesWith(ranks, {.in_step = 2}), whole) << ranks;
    EXPECT_EQ(LossesWith(ranks, {.in_step = 1}), whole) << "the first step, " << ranks;
  }
}

TEST(StopSignalInAStep, IsSeenAtTheOtherStagesToo) {
  for (const int stage : {2, 3}) {
    const std::vector<double> whole = LossesWith(2, {.stage = stage});
    EXPECT_EQ(LossesWith(2, {.in_step = 2, .stage = stage}), whole) << stage;
  }
}

// Whatever such a program does behind a step belongs to that step.
TEST(StopSignalInAStep, WaitsForItsEndWithoutTheOptionAndWhereThereAreSeveralEngines) {
  EXPECT_EQ(LossesWith(2, {.in_step = 2, .may_leave = false}).size(), 2U);
  EXPECT_EQ(LossesWith(1, {.in_step = 2, .with_another_engine = true}).size(), 2U);
}

// Behind which of `all` micro-batches the first look of a step is due; 0: behind none.
int64_t FirstLook(const StopLooks& looks, int64_t all) {
  for (int64_t done = 1; done <= all; ++done) {
    if (looks.Due(done, all)) {
      return done;
    }
  }
  return 0;
}

TEST(StopLooksTest, AreHalfASecondApartByTheSlowestRanksMicroBatch) {
  at::set_num_threads(1);
  const testing::TempFolder folder;
  const auto job = *testing::MakeTestJob({.run_dir = folder.path()});
  Chain model, another_model;
  EngineOptions options;
  options.may_leave_step = true;
  const auto engine = *Engine::Create(*job, model, options);
  StopLooks looks(*job, engine->state());
  looks.Begin();
  EXPECT_EQ(FirstLook(looks, 10000), 1) << "nobody knows yet how long a micro-batch lasts";
  const std::pair<double, int64_t> cases[] = {{0.02, 25}, {0.125, 4}, {0.2, 2},      {0.26, 1},
                                              {0.5, 1},   {60, 1},    {0.0001, 5000}};
  for (const auto& [seconds, micro_batches] : cases) {
    looks.Take({.micro_batch_s = seconds});
    looks.Begin();
    EXPECT_EQ(FirstLook(looks, 10000), micro_batches) << seconds;
    EXPECT_EQ(FirstLook(looks, micro_batches), 0) << "the step's end looks too, " << seconds;
    EXPECT_EQ(FirstLook(looks, micro_batches + 1), micro_batches) << seconds;
  }
  looks.Take({.micro_batch_s = 0});  // No clock is so fine.
  looks.Begin();
  EXPECT_EQ(FirstLook(looks, 10000), 0);
  looks.Take({.micro_batch_s = 0.2});
  looks.Begin();
  const auto another = *Engine::Create(*job, another_model, options);
  EXPECT_EQ(FirstLook(looks, 10000), 0) << "the other engine would be a step ahead";
}

// Collectives of steps of eight micro-batches, and how long each step took. On a busy machine one
// of them may last for so long that the next one looks.
TEST(StopSignalInAStep, CostsNoCollectiveInAStepThatIsShort) {
  constexpr size_t kSteps = 10;
  std::vector<std::vector<double>> runs;
  for (const bool may_leave : {false, true}) {
    runs.push_back(testing::NumbersOf(
        2, [&](RankContext& context, std::vector<double>& numbers) -> absl::Status {
          at::set_num_threads(1);
          const testing::TempFolder folder;
          DT_ASSIGN_OR_RETURN(auto job, testing::MakeChainJob(&context, folder.path(),
                                                              {.stage = 0, .accumulation = 8}));
          Chain model;
          EngineOptions options;
          options.may_leave_step = may_leave;
          DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model, options));
          Counted source(context.rank);
          for (size_t step = 0; step < kSteps; ++step) {
            const uint64_t before = job->group().sequence();
            const int64_t begun = Clock::Real().MonotonicNanos();
            DT_RETURN_IF_ERROR(engine
                                   ->Step(source,
                                          [&](const at::Tensor& tokens) {
                                            return Loss(model.Loss(tokens), tokens.numel());
                                          })
                                   .status());
            const int64_t nanos = Clock::Real().MonotonicNanos() - begun;
            numbers.push_back(static_cast<double>(job->group().sequence() - before));
            numbers.push_back(static_cast<double>(nanos) * 1e-9);
          }
          return absl::OkStatus();
        }));
    ASSERT_EQ(runs.back().size(), 2 * kSteps);
  }
  EXPECT_GE(runs[1][0], runs[0][0]) << "the first step, of which nobody knows how long it lasts";
  int compared = 0;
  for (size_t step = 1; step < kSteps; ++step) {
    // Ranks begin and end a step together: no rank's micro-batches took a sixteenth of a second.
    if (runs[1][2 * step - 1] < 0.4) {
      EXPECT_EQ(runs[1][2 * step], runs[0][2 * step]) << "step " << step + 1;
      ++compared;
    }
  }
  EXPECT_GT(compared, 0) << "each step was long";
}

}  // namespace
}  // namespace dtrain::engine_stop_test
