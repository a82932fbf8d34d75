// The random numbers of micro-batches: the same for the same samples on any number of ranks, with
// any accumulation, at every stage and after any resume; and the program's own beside them.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "dtrain/checkpointer.h"
#include "dtrain/engine.h"
#include "dtrain/ops.h"
#include "dtrain/recompute.h"
#include "runtime/job/micro_batch_seed.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "torch/nn/module.h"

namespace dtrain::engine_random_test {
namespace {

using testing::RankContext;

constexpr int64_t kWidth = 24;
constexpr int64_t kGlobalBatch = 4;  // Micro-batches have one sample.

// Two layers, dropout of LibTorch's and of dtrain's behind them.
class Noisy : public torch::nn::Module {
 public:
  Noisy() {
    first = register_parameter("first", at::randn({kWidth, kWidth}) * 0.3);
    second = register_parameter("second", at::randn({kWidth, kWidth}) * 0.3);
  }
  at::Tensor Loss(const at::Tensor& x, bool recompute) {
    const auto layer = [this](const at::Tensor& in) {
      const at::Tensor h = at::dropout(at::tanh(in.matmul(first)), 0.5, is_training());
      return ops::Dropout(h.matmul(second), 0.5, is_training());
    };
    return (recompute ? Recompute(layer, x) : layer(x)).square().sum();
  }
  at::Tensor first, second;
};

// Samples in the order in which plan::TokenSampler deals them out.
struct Samples {
  int64_t rank, size;
  int64_t step = 0;
  int64_t micro = 0;
  int64_t place() const { return micro * size + rank; }
  absl::StatusOr<at::Tensor> Next() {
    const at::Tensor x =
        at::sin(at::arange(0, kWidth, at::kFloat).view({1, -1}) * static_cast<double>(place() + 1) +
                static_cast<double>(step));
    if (++micro == kGlobalBatch / size) {
      micro = 0;
      ++step;
    }
    return x;
  }
};

struct Way {
  int stage = 0;
  bool recompute = false;
  bool own_loop = false;     // Backward and Update in place of Step.
  bool interferes = false;   // Evaluates and draws between steps.
  bool two_engines = false;  // They take their steps in turns.
  int64_t until = 3;         // Steps; saved at the end.
};

// By "ENGINE/STEP/PLACE": a number that the closure drew; losses and norms by step; what the
// program drew after each step.
struct Outcome {
  std::map<std::string, double> draws;
  std::vector<double> numbers;
  std::vector<double> between;
  Json ToJson() const { return {draws, numbers, between}; }
};

class Training {
 public:
  Training(RankContext& context, const Way& way, Outcome& outcome)
      : context_(context), way_(way), outcome_(outcome), samples_{context.rank, context.size} {}

  absl::Status Run(const std::string& folder) {
    at::set_num_threads(1);
    DT_ASSIGN_OR_RETURN(
        auto job, testing::MakeTestJob(
                      {.run_dir = folder,
                       .overrides = {"train_micro_batch_size_per_gpu=1", "deterministic=true",
                                     absl::StrCat("train_batch_size=", kGlobalBatch),
                                     "optimizer.params.lr=0.01", "eval_batches=2", "seed=77",
                                     absl::StrCat("zero_optimization.stage=", way_.stage),
                                     "zero_optimization.stage3_param_persistence_threshold=0"},
                       .rank = &context_}));
    at::manual_seed(3);
    Noisy model;
    Noisy other;
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
    DT_ASSIGN_OR_RETURN(auto second, Engine::Create(*job, other));
    DT_ASSIGN_OR_RETURN(auto checkpoints, Checkpointer::Open(*job));
    checkpoints->Track("engine", *engine);
    checkpoints->Track("second", *second);
    DT_RETURN_IF_ERROR(checkpoints->RestoreLatest());
    samples_.step = engine->step();
    if (way_.own_loop) {
      engine->BeginMicroBatch();
    }
    while (engine->step() < way_.until) {
      DT_RETURN_IF_ERROR(Step(*engine, model, 0));
      if (way_.two_engines) {
        samples_.step -= 1;  // The same samples.
        DT_RETURN_IF_ERROR(Step(*second, other, 1));
      }
      if (way_.interferes) {
        Samples validation{context_.rank, context_.size};
        DT_RETURN_IF_ERROR(engine
                               ->Evaluate(validation,
                                          [&](const at::Tensor& x) {
                                            at::rand({5});
                                            return Loss(model.Loss(x, false), 1);
                                          })
                               .status());
      }
      if (!way_.own_loop) {
        outcome_.between.push_back(at::rand({1}, at::kDouble).item<double>());
      }
    }
    return checkpoints->Finish();
  }

 private:
  // One closure's loss, which is noted.
  at::Tensor LossOf(const std::string& turn, Noisy& model, const at::Tensor& x, int64_t place) {
    const double noise = at::rand({1}, at::kDouble).item<double>();
    outcome_.draws[absl::StrCat(turn, "/", place)] = noise;
    return model.Loss(x + noise * 0.1, way_.recompute);
  }

  absl::Status Step(Engine& engine, Noisy& model, int number) {
    const std::string turn = absl::StrCat(number, "/", engine.step());
    absl::StatusOr<StepReport> report;
    if (way_.own_loop) {
      const int64_t accumulation = kGlobalBatch / context_.size;
      for (int64_t micro = 0; micro < accumulation; ++micro) {
        const int64_t place = samples_.place();
        DT_ASSIGN_OR_RETURN(const at::Tensor x, samples_.Next());
        DT_RETURN_IF_ERROR(engine.Backward(Loss(LossOf(turn, model, x, place), 1),
                                           {.last_micro_batch = micro + 1 == accumulation}));
      }
      report = engine.Update();
    } else {
      int64_t place = 0;
      struct Source {
        Samples& samples;
        int64_t& place;
        absl::StatusOr<at::Tensor> Next() {
          place = samples.place();
          return samples.Next();
        }
      } source{samples_, place};
      report = engine.Step(
          source, [&](const at::Tensor& x) { return Loss(LossOf(turn, model, x, place), 1); });
    }
    DT_RETURN_IF_ERROR(report.status());
    outcome_.numbers.push_back(report->loss);
    outcome_.numbers.push_back(report->grad_norm);
    return absl::OkStatus();
  }

  RankContext& context_;
  const Way& way_;
  Outcome& outcome_;
  Samples samples_;
};

// The outcomes of all ranks in one, after a check that their common numbers are the same.
Outcome OutcomeOf(int size, const Way& way, const std::string& folder) {
  auto cluster = testing::Cluster::Start({.size = size}, [&](RankContext& context) -> absl::Status {
    Outcome outcome;
    DT_RETURN_IF_ERROR(Training(context, way, outcome).Run(folder));
    return context.store->Set(absl::StrCat("outcome/", context.rank), DumpJson(outcome.ToJson()),
                              Deadline::After(absl::Seconds(10)));
  });
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  Outcome all;
  for (int rank = 0; rank < size; ++rank) {
    const auto text = (*cluster)->Result(absl::StrCat("outcome/", rank));
    const Json json = *ParseJson(text.value_or("[{},[],[]]"), "outcome");
    all.draws.merge(json[0].get<std::map<std::string, double>>());
    const auto numbers = json[1].get<std::vector<double>>();
    const auto between = json[2].get<std::vector<double>>();
    if (rank == 0) {
      all.numbers = numbers;
      all.between = between;
    }
    EXPECT_EQ(numbers, all.numbers) << "rank " << rank;
    EXPECT_EQ(between, all.between) << "rank " << rank << " draws as others do between steps";
  }
  for (const auto& result : (*cluster)->Join()) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
  return all;
}

Outcome OutcomeOf(int size, const Way& way) {
  const testing::TempFolder folder;
  return OutcomeOf(size, way, folder.path());
}

// Sums of gradients are in another order.
void ExpectNear(const std::vector<double>& numbers, const std::vector<double>& expected) {
  ASSERT_EQ(numbers.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(numbers[i], expected[i], 1e-5 * std::abs(expected[i])) << i;
  }
}

void ExpectAllDiffer(const std::map<std::string, double>& draws) {
  std::set<double> values;
  for (const auto& [place, value] : draws) {
    values.insert(value);
  }
  EXPECT_EQ(values.size(), draws.size());
}

TEST(EngineRandomTest, TheSeedDiffersByStepPlaceAndPass) {
  std::set<uint64_t> seeds;
  for (const MicroBatchOf pass : {MicroBatchOf::kTraining, MicroBatchOf::kEvaluation}) {
    for (int64_t step = 0; step < 50; ++step) {
      for (int64_t place = 0; place < 50; ++place) {
        seeds.insert(MicroBatchSeed(1234, pass, step, place) & 0xffffffff);  // mt19937 takes these.
      }
    }
  }
  EXPECT_GT(seeds.size(), 2 * 50 * 50 - 3);
  EXPECT_NE(MicroBatchSeed(1, MicroBatchOf::kTraining, 0, 0),
            MicroBatchSeed(2, MicroBatchOf::kTraining, 0, 0));
}

TEST(EngineRandomTest, AnyNumberOfRanksDrawsTheSameForEachSampleAtEveryStage) {
  const Outcome expected = OutcomeOf(1, {});
  ASSERT_EQ(expected.draws.size(), 3 * kGlobalBatch);
  ExpectAllDiffer(expected.draws);
  for (const int size : {1, 2, 4}) {
    for (const int stage : size == 2 ? std::vector<int>{0, 1, 2, 3} : std::vector<int>{3}) {
      SCOPED_TRACE(absl::StrCat(size, " ranks, stage ", stage));
      const Outcome outcome = OutcomeOf(size, {.stage = stage, .recompute = stage % 2 == 1});
      EXPECT_EQ(outcome.draws, expected.draws);
      EXPECT_EQ(outcome.between, expected.between);
      ExpectNear(outcome.numbers, expected.numbers);
    }
  }
}

TEST(EngineRandomTest, RecomputationChangesNothing) {
  for (const int stage : {0, 3}) {
    const Outcome plain = OutcomeOf(2, {.stage = stage});
    const Outcome recomputed = OutcomeOf(2, {.stage = stage, .recompute = true});
    EXPECT_EQ(recomputed.numbers, plain.numbers) << stage;
  }
}

TEST(EngineRandomTest, AResumeOnAnotherNumberOfRanksGoesOnWithTheSameNumbers) {
  const Outcome straight = OutcomeOf(1, {.until = 4});
  for (const bool own_loop : {false, true}) {
    for (const auto& [before, after] : {std::pair(2, 1), std::pair(1, 2), std::pair(2, 2)}) {
      SCOPED_TRACE(absl::StrCat(before, " and ", after, " ranks", own_loop ? ", own loop" : ""));
      const testing::TempFolder folder;
      Outcome outcome = OutcomeOf(before, {.own_loop = own_loop, .until = 2}, folder.path());
      const Outcome rest = OutcomeOf(after, {.own_loop = own_loop, .until = 4}, folder.path());
      outcome.draws.insert(rest.draws.begin(), rest.draws.end());
      outcome.numbers.insert(outcome.numbers.end(), rest.numbers.begin(), rest.numbers.end());
      outcome.between.insert(outcome.between.end(), rest.between.begin(), rest.between.end());
      EXPECT_EQ(outcome.draws, straight.draws);
      ExpectNear(outcome.numbers, straight.numbers);
      if (!own_loop) {
        EXPECT_EQ(outcome.between, straight.between);
      }
    }
  }
}

TEST(EngineRandomTest, ALoopOfAProgramsOwnDrawsAsStepDoes) {
  const Outcome expected = OutcomeOf(1, {});
  for (const int size : {1, 2}) {
    const Outcome outcome = OutcomeOf(size, {.own_loop = true});
    EXPECT_EQ(outcome.draws, expected.draws);
    ExpectNear(outcome.numbers, expected.numbers);
  }
}

TEST(EngineRandomTest, EvaluationsAndTheProgramsDrawsLeaveTrainingAsItIs) {
  const Outcome expected = OutcomeOf(2, {});
  const Outcome outcome = OutcomeOf(2, {.interferes = true});
  EXPECT_EQ(outcome.draws, expected.draws);
  EXPECT_EQ(outcome.numbers, expected.numbers);
  EXPECT_EQ(outcome.between, expected.between);
  const Outcome own = OutcomeOf(2, {.own_loop = true, .interferes = true});
  EXPECT_EQ(own.draws, expected.draws);
}

TEST(EngineRandomTest, EnginesThatTakeTurnsDrawOtherNumbersInEachTurn) {
  for (const bool own_loop : {false, true}) {
    const Outcome one = OutcomeOf(1, {.own_loop = own_loop, .two_engines = true});
    EXPECT_EQ(one.draws.size(), 2 * 3 * kGlobalBatch);
    ExpectAllDiffer(one.draws);
    const Outcome two = OutcomeOf(2, {.own_loop = own_loop, .two_engines = true});
    EXPECT_EQ(two.draws, one.draws);
    ExpectNear(two.numbers, one.numbers);
  }
}

}  // namespace
}  // namespace dtrain::engine_random_test
