// Evaluations read each window once on any number of ranks, and end with a finite source, without
// any target, or by a stop signal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <fstream>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"
#include "dtrain/checkpointer.h"
#include "dtrain/engine.h"
#include "dtrain/token_loader.h"
#include "runtime/job/stop_signal.h"
#include "runtime/plan/data/token_file.h"
#include "tests/runtime/testing/chain_for_tests.h"
#include "tests/runtime/testing/job_for_tests.h"

namespace dtrain::engine_evaluate_test {
namespace {

using testing::Chain;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::RankContext;

constexpr int64_t kSequence = 3;

// Window i of the file is [i, i, i] and its last target i + 1, the first token of the next one.
std::string WriteWindows(const std::string& folder, int64_t windows) {
  std::string bytes = plan::MakeTokenHeader(windows * kSequence + 1, /*vocabulary=*/0);
  for (int64_t i = 0; i <= windows * kSequence; ++i) {
    const auto token = static_cast<uint16_t>(i / kSequence);
    bytes.append(reinterpret_cast<const char*>(&token), sizeof(token));
  }
  const std::string path = absl::StrCat(folder, "/windows.bin");
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

struct Reading {
  int stage = 0;
  int64_t windows = 5;
  int micro_batch = 1;
  int accumulation = 1;
  int eval_batches = 16;
  std::vector<std::string> more = {};
};

absl::StatusOr<std::unique_ptr<Job>> MakeJob(RankContext& context, const std::string& folder,
                                             const Reading& reading) {
  const std::string path = WriteWindows(folder, reading.windows);
  std::vector<std::string> more = {
      absl::StrCat("train_micro_batch_size_per_gpu=", reading.micro_batch),
      absl::StrCat("eval_batches=", reading.eval_batches),
      absl::StrCat("data.sequence_length=", kSequence),
      absl::StrCat("data.train=[\"", path, "\"]"),
      absl::StrCat("data.validation=[\"", path, "\"]"),
  };
  more.insert(more.end(), reading.more.begin(), reading.more.end());
  return testing::MakeChainJob(
      &context, folder,
      {.stage = reading.stage, .accumulation = reading.accumulation, .more = more});
}

// Runs `body` on `size` ranks; each must end well.
void OnRanks(int size, const testing::RankBody& body, const std::string& what = "") {
  for (const auto& result : testing::RunRanks({.size = size}, [&](RankContext& context) {
         at::set_num_threads(1);
         return body(context);
       })) {
    EXPECT_TRUE(result.status.ok()) << what << ": " << result.status;
  }
}

absl::Status Expect(bool good, const std::string& what) {
  return good ? absl::OkStatus() : absl::InternalError(what);
}

absl::Status ExpectNear(double value, double expected, double tolerance, const std::string& what) {
  return Expect(std::abs(value - expected) <= tolerance,
                absl::StrCat(what, ": ", value, " in place of ", expected));
}

// Reads every weight, as all ranks of stage 3 must, and adds nothing.
at::Tensor Nothing(Chain& model, const Batch& batch) {
  return model.Loss(batch.tokens.flatten()) * 0;
}

// A sum of 2^i over windows i: it tells which were read, and none can stand in for another.
Loss PowersOfTwo(Chain& model, const Batch& batch) {
  const at::Tensor powers = at::pow(2.0, batch.tokens.select(1, 0).to(at::kDouble));
  return {powers.sum() + Nothing(model, batch), batch.tokens.size(0)};
}

Loss MeanOfWindows(Chain& model, const Batch& batch) {
  return batch.tokens.select(1, 0).to(at::kDouble).mean() + Nothing(model, batch);
}

class EveryWindowOnce : public ::testing::TestWithParam<std::tuple<int, int>> {};

INSTANTIATE_TEST_SUITE_P(All, EveryWindowOnce,
                         ::testing::Combine(::testing::Values(1, 2, 3), ::testing::Values(0, 3)),
                         [](const auto& test) {
                           return absl::StrCat("ranks", std::get<0>(test.param), "_stage",
                                               std::get<1>(test.param));
                         });

// The mean loss over all windows by LibTorch alone, without an engine.
double PlainLoss(Chain& model, int64_t windows) {
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = at::arange(windows, at::kLong).repeat_interleave(kSequence);
  return model.Loss(tokens).item<double>() / static_cast<double>(tokens.numel());
}

TEST_P(EveryWindowOnce, WhereTheSplitHasFewerThanAreAskedFor) {
  const auto& [size, stage] = GetParam();
  for (const auto& [windows, micro_batch, accumulation] :
       {std::tuple(5, 1, 1), std::tuple(5, 2, 1), std::tuple(5, 6, 1), std::tuple(1, 2, 1),
        std::tuple(7, 1, 2), std::tuple(12, 2, 2)}) {
    const Reading reading{.stage = stage,
                          .windows = windows,
                          .micro_batch = micro_batch,
                          .accumulation = accumulation};
    OnRanks(
        size,
        [&](RankContext& context) -> absl::Status {
          const testing::TempFolder folder;
          DT_ASSIGN_OR_RETURN(auto job, MakeJob(context, folder.path(), reading));
          at::manual_seed(3);
          Chain model;
          const double plain = PlainLoss(model, reading.windows);
          DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
          DT_ASSIGN_OR_RETURN(auto valid, TokenLoader::Open(*job, Split::kValidation));
          for (int times = 0; times < 2; ++times) {  // The same windows in each evaluation.
            DT_ASSIGN_OR_RETURN(double value, engine->Evaluate(*valid, [&](const Batch& batch) {
              return Loss(model.Loss(batch.tokens.flatten()), batch.tokens.numel());
            }));
            // fp32 sums in another order.
            DT_RETURN_IF_ERROR(ExpectNear(value, plain, 1e-5 * plain, "LibTorch's loss"));
            DT_ASSIGN_OR_RETURN(value, engine->Evaluate(*valid, [&](const Batch& batch) {
              return PowersOfTwo(model, batch);
            }));
            const auto count = static_cast<double>(reading.windows);
            DT_RETURN_IF_ERROR(ExpectNear(value, (std::exp2(count) - 1) / count, 1e-9, "windows"));
            DT_ASSIGN_OR_RETURN(value, engine->Evaluate(*valid, [&](const Batch& batch) {
              return MeanOfWindows(model, batch);
            }));
            DT_RETURN_IF_ERROR(ExpectNear(value, (count - 1) / 2, 1e-9, "a mean loss"));
          }
          return absl::OkStatus();
        },
        absl::StrCat(windows, " windows, micro-batch ", micro_batch, " x ", accumulation));
  }
}

TEST_P(EveryWindowOnce, TheFirstOnesWhereTheSplitHasMore) {
  const auto& [size, stage] = GetParam();
  // Twelve windows in global batches of six, whatever the number of ranks.
  const Reading reading{.stage = stage, .windows = 20, .micro_batch = 6 / size, .eval_batches = 2};
  OnRanks(size, [&](RankContext& context) -> absl::Status {
    const testing::TempFolder folder;
    DT_ASSIGN_OR_RETURN(auto job, MakeJob(context, folder.path(), reading));
    Chain model;
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
    DT_ASSIGN_OR_RETURN(auto valid, TokenLoader::Open(*job, Split::kValidation));
    for (int times = 0; times < 2; ++times) {
      DT_ASSIGN_OR_RETURN(const double value, engine->Evaluate(*valid, [&](const Batch& batch) {
        return PowersOfTwo(model, batch);
      }));
      DT_RETURN_IF_ERROR(ExpectNear(value, 4095.0 / 12, 1e-9, "windows"));
    }
    return absl::OkStatus();
  });
}

TEST(EvaluatedLoader, GoesOnFromWhereItStoodAndHasNoEndOfItsOwn) {
  OnRanks(1, [](RankContext& context) -> absl::Status {
    const testing::TempFolder folder;
    const Reading reading{.windows = 5, .micro_batch = 2};
    DT_ASSIGN_OR_RETURN(auto job, MakeJob(context, folder.path(), reading));
    Chain model;
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
    DT_ASSIGN_OR_RETURN(auto valid, TokenLoader::Open(*job, Split::kValidation));
    const auto first_token = [&]() -> absl::StatusOr<int64_t> {
      DT_ASSIGN_OR_RETURN(const Batch batch, valid->Next());
      DT_RETURN_IF_ERROR(Expect(batch.tokens.size(0) == 2, "a short batch"));
      return batch.tokens[0][0].item<int64_t>();
    };
    for (const int64_t expected : {0, 2, 4, 1, 3, 0}) {  // Windows 4 and 0 are the third batch.
      DT_ASSIGN_OR_RETURN(const int64_t first, first_token());
      DT_RETURN_IF_ERROR(Expect(first == expected, absl::StrCat(first, " first")));
      DT_ASSIGN_OR_RETURN(const double value, engine->Evaluate(*valid, [&](const Batch& batch) {
        return PowersOfTwo(model, batch);
      }));
      DT_RETURN_IF_ERROR(ExpectNear(value, 31.0 / 5, 1e-9, "windows"));
    }
    return absl::OkStatus();
  });
}

TEST(EvaluatedLoader, GivesShortBatchesAndThenSaysThatItHasEnded) {
  OnRanks(3, [](RankContext& context) -> absl::Status {
    const testing::TempFolder folder;
    DT_ASSIGN_OR_RETURN(auto job,
                        MakeJob(context, folder.path(), {.windows = 9, .micro_batch = 2}));
    DT_ASSIGN_OR_RETURN(auto valid, TokenLoader::Open(*job, Split::kValidation));
    valid->BeginPass();
    std::vector<int64_t> rows;
    absl::StatusOr<Batch> batch = valid->Next();
    for (; batch.ok(); batch = valid->Next()) {
      rows.push_back(batch->tokens.size(0));
    }
    const std::vector<std::vector<int64_t>> expected = {{2, 2}, {2, 1}, {2}};
    DT_RETURN_IF_ERROR(Expect(rows == expected[static_cast<size_t>(context.rank)], "rows"));
    for (int more = 0; more < 10; ++more) {
      DT_RETURN_IF_ERROR(Expect(IsEndOfData(valid->Next().status()), "it goes on"));
    }
    DT_ASSIGN_OR_RETURN(const Batch spare, valid->Spare());
    DT_RETURN_IF_ERROR(Expect(spare.targets.eq(kIgnoredTarget).all().item<bool>() &&
                                  spare.targets_counted == 0 && spare.tokens.size(0) == 1,
                              "the spare batch counts"));
    DT_RETURN_IF_ERROR(Expect(
        valid->Description().find("/windows.bin; 9 windows of 3 tokens)") != std::string::npos,
        valid->Description()));
    valid->EndPass();
    DT_ASSIGN_OR_RETURN(batch, valid->Next());
    return Expect(batch->tokens.size(0) == 2, "after the pass");
  });
}

TEST(EndOfDataTest, IsNoOtherError) {
  EXPECT_TRUE(IsEndOfData(EndOfData()));
  EXPECT_TRUE(IsEndOfData(Annotate(EndOfData(), "the file")));
  EXPECT_FALSE(IsEndOfData(absl::OkStatus()));
  EXPECT_FALSE(IsEndOfData(absl::OutOfRangeError("the data source has no further batch")));
}

// A program's own: batches [rows] whose tokens are `first` and the numbers that follow.
struct Numbers {
  int64_t batches = 0;
  int64_t first = 0;
  int64_t next = 0;
  absl::StatusOr<at::Tensor> Next() {
    if (next == batches) {
      return EndOfData();
    }
    return at::full({2}, first + next++, at::kLong);
  }
  void Restart() { next = 0; }
};

Loss SumOfNumbers(Chain& model, const at::Tensor& numbers) {
  return {numbers.to(at::kDouble).sum() + model.Loss(numbers) * 0, numbers.numel()};
}

class FiniteSource : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Stages, FiniteSource, ::testing::Values(0, 1, 2, 3));

TEST_P(FiniteSource, OfAnotherLengthOnEachRankIsReadToItsEnd) {
  OnRanks(3, [](RankContext& context) -> absl::Status {
    const testing::TempFolder folder;
    DT_ASSIGN_OR_RETURN(auto job, MakeJob(context, folder.path(), {.stage = GetParam()}));
    Chain model;
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
    // Rank 0: 0; rank 1: 10, 11; rank 2: 20, 21, 22. Two numbers each.
    Numbers source{.batches = context.rank + 1, .first = 10 * context.rank};
    for (int times = 0; times < 2; ++times) {
      DT_ASSIGN_OR_RETURN(const double value,
                          engine->Evaluate(source, [&](const at::Tensor& numbers) {
                            return SumOfNumbers(model, numbers);
                          }));
      DT_RETURN_IF_ERROR(ExpectNear(value, (0 + 10 + 11 + 20 + 21 + 22) / 6.0, 1e-9, "numbers"));
    }
    return absl::OkStatus();
  });
}

TEST_P(FiniteSource, WithoutABatchOnOneRankIsAnErrorWhereAllRanksMustGatherAlone) {
  OnRanks(2, [](RankContext& context) -> absl::Status {
    const testing::TempFolder folder;
    DT_ASSIGN_OR_RETURN(auto job, MakeJob(context, folder.path(), {.stage = GetParam()}));
    Chain model;
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
    Numbers source{.batches = context.rank, .first = 7};
    const auto loss = [&](const at::Tensor& numbers) { return SumOfNumbers(model, numbers); };
    const absl::StatusOr<double> value = engine->Evaluate(source, loss);
    if (GetParam() < 3) {
      DT_RETURN_IF_ERROR(value.status());
      return ExpectNear(*value, 7, 1e-9, "numbers");
    }
    const std::string text(value.status().message());
    DT_RETURN_IF_ERROR(Expect(absl::IsInvalidArgument(value.status()) &&
                                  text.find("rank 0 got no batch at all") != std::string::npos &&
                                  text.find("Spare()") != std::string::npos,
                              value.status().ToString()));
    Numbers all{.batches = 1, .first = 5};  // The engine goes on.
    DT_ASSIGN_OR_RETURN(const double after, engine->Evaluate(all, loss));
    return ExpectNear(after, 5, 1e-9, "after the error");
  });
}

TEST_P(FiniteSource, ThatFailsOnOneRankEndsTheEvaluationOfAllAndTheEngineGoesOn) {
  OnRanks(2, [](RankContext& context) -> absl::Status {
    const testing::TempFolder folder;
    DT_ASSIGN_OR_RETURN(auto job, MakeJob(context, folder.path(), {.stage = GetParam()}));
    Chain model;
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
    struct Failing : Numbers {
      bool fails = false;
      absl::StatusOr<at::Tensor> Next() {
        if (fails && next == 1) {
          return absl::OutOfRangeError("id 300 is above the vocabulary");
        }
        return Numbers::Next();
      }
    } source{{.batches = 3, .first = 1}, context.rank == 1};
    const auto loss = [&](const at::Tensor& numbers) { return SumOfNumbers(model, numbers); };
    const absl::Status status = engine->Evaluate(source, loss).status();
    const absl::StatusCode code =
        context.rank == 1 ? absl::StatusCode::kOutOfRange : absl::StatusCode::kAborted;
    DT_RETURN_IF_ERROR(Expect(status.code() == code, status.ToString()));
    source.fails = false;
    DT_ASSIGN_OR_RETURN(const double value, engine->Evaluate(source, loss));
    return ExpectNear(value, 2, 1e-9, "after the error");
  });
}

TEST(FiniteSourceInAStep, IsAnErrorThatSaysSo) {
  OnRanks(1, [](RankContext& context) -> absl::Status {
    const testing::TempFolder folder;
    DT_ASSIGN_OR_RETURN(auto job, MakeJob(context, folder.path(), {}));
    Chain model;
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
    Numbers source{.batches = 1};
    const auto loss = [&](const at::Tensor& numbers) {
      return Loss(model.Loss(numbers), numbers.numel());
    };
    DT_RETURN_IF_ERROR(engine->Step(source, loss).status());
    const absl::Status ended = engine->Step(source, loss).status();
    DT_RETURN_IF_ERROR(
        Expect(absl::StrContains(ended.message(), "step 2 needs a batch that the data source ") &&
                   absl::StrContains(ended.message(), "Numbers") &&
                   absl::StrContains(ended.message(), "set train_steps or train_epochs"),
               ended.ToString()));
    return Expect(IsEndOfData(ended) && engine->step() == 1, ended.ToString());
  });
}

// The one line that an evaluation without a result gives on every rank.
void ExpectNoResult(int size, int stage, const std::function<Loss(Chain&, const Batch&)>& loss,
                    const std::vector<std::string>& texts) {
  for (const auto& result : testing::RunRanks({.size = size}, [&](RankContext& context) {
         at::set_num_threads(1);
         const testing::TempFolder folder;
         const auto evaluate = [&]() -> absl::Status {
           DT_ASSIGN_OR_RETURN(auto job, MakeJob(context, folder.path(), {.stage = stage}));
           Chain model;
           DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
           DT_ASSIGN_OR_RETURN(auto valid, TokenLoader::Open(*job, Split::kValidation));
           return engine->Evaluate(*valid, [&](const Batch& batch) { return loss(model, batch); })
               .status();
         };
         return evaluate();
       })) {
    EXPECT_EQ(result.status.code(), absl::StatusCode::kInvalidArgument) << result.status;
    const std::string text(result.status.message());
    EXPECT_THAT(text, Not(HasSubstr("\n")));
    for (const std::string& part : texts) {
      EXPECT_THAT(text, HasSubstr(part));
    }
  }
}

TEST(EvaluationWithoutTarget, IsAnErrorThatNamesTheFilesAndNotALossOfZero) {
  for (const int size : {1, 2}) {
    for (const int stage : {0, 3}) {
      const std::vector<std::string> texts = {"has no loss", "data.validation (",
                                              "windows.bin; 5 windows of 3 tokens)",
                                              "no target counts", "eval_interval=0"};
      ExpectNoResult(
          size, stage,
          [](Chain& model, const Batch& batch) { return Loss(Nothing(model, batch), 0); }, texts);
    }
  }
}

// A mean over targets of which all are ignored is NaN: it weighs nothing.
TEST(EvaluationWithoutTarget, OfSomeMicroBatchesWeighsNothing) {
  OnRanks(2, [](RankContext& context) -> absl::Status {
    const testing::TempFolder folder;
    // Window 2 is three documents of one token, each of which ignores its last target.
    DT_ASSIGN_OR_RETURN(auto job, MakeJob(context, folder.path(),
                                          {.windows = 5, .more = {"data.document_token=2"}}));
    Chain model;
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
    DT_ASSIGN_OR_RETURN(auto valid, TokenLoader::Open(*job, Split::kValidation));
    DT_ASSIGN_OR_RETURN(const double value, engine->Evaluate(*valid, [&](const Batch& batch) {
      const at::Tensor kept = batch.targets.ne(kIgnoredTarget);
      return Loss(batch.tokens.masked_select(kept).to(at::kDouble).mean() + Nothing(model, batch));
    }));
    return ExpectNear(value, (0 + 1 + 3 + 4) / 4.0, 1e-9, "mean");
  });
}

TEST(EvaluationWithoutBatch, IsAnErrorToo) {
  OnRanks(2, [](RankContext& context) -> absl::Status {
    const testing::TempFolder folder;
    DT_ASSIGN_OR_RETURN(auto job, MakeJob(context, folder.path(), {}));
    Chain model;
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
    Numbers source;
    const absl::Status status =
        engine
            ->Evaluate(source,
                       [&](const at::Tensor& numbers) { return SumOfNumbers(model, numbers); })
            .status();
    return Expect(absl::IsInvalidArgument(status) &&
                      status.message().find("has no batch for any rank") != std::string::npos,
                  status.ToString());
  });
}

class StoppedEvaluation : public ::testing::TestWithParam<std::tuple<int, int>> {};
INSTANTIATE_TEST_SUITE_P(All, StoppedEvaluation,
                         ::testing::Combine(::testing::Values(1, 2), ::testing::Values(0, 3)),
                         [](const auto& test) {
                           return absl::StrCat("ranks", std::get<0>(test.param), "_stage",
                                               std::get<1>(test.param));
                         });

// The last rank gets it in its third micro-batch of 40.
TEST_P(StoppedEvaluation, EndsOnAllRanksWithoutAResultAndTheStepIsSaved) {
  const auto& [size, stage] = GetParam();
  const testing::TempFolder shared;
  OnRanks(size, [&](RankContext& context) -> absl::Status {
    InstallStopSignals();
    const testing::TempFolder folder;
    DT_ASSIGN_OR_RETURN(
        auto job, MakeJob(context, folder.path(),
                          {.stage = stage,
                           .windows = 80,
                           .eval_batches = 1000,
                           .more = {absl::StrCat("checkpoint.dir=", shared.path(), "/saved")}}));
    Chain model;
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
    DT_ASSIGN_OR_RETURN(auto checkpoints, Checkpointer::Open(*job));
    checkpoints->Track("engine", *engine);
    DT_RETURN_IF_ERROR(checkpoints->RestoreLatest());
    DT_ASSIGN_OR_RETURN(auto train, TokenLoader::Open(*job, Split::kTrain));
    DT_ASSIGN_OR_RETURN(auto valid, TokenLoader::Open(*job, Split::kValidation));
    int calls = 0;
    bool sends = false;
    const auto loss = [&](const Batch& batch) {
      if (sends && ++calls == 3 && context.rank == context.size - 1) {
        raise(SIGTERM);
      }
      return Loss(model.Loss(batch.tokens.flatten()), batch.tokens.numel());
    };
    DT_RETURN_IF_ERROR(engine->Step(*train, loss).status());
    DT_ASSIGN_OR_RETURN(double value, engine->Evaluate(*valid, loss));
    job->metrics().Log("eval/loss", value);
    DT_RETURN_IF_ERROR(Expect(std::isfinite(value), "a whole evaluation"));
    sends = true;
    DT_ASSIGN_OR_RETURN(value, engine->Evaluate(*valid, loss));
    job->metrics().Log("eval/loss", value);
    DT_RETURN_IF_ERROR(Expect(std::isnan(value), absl::StrCat("a partial result: ", value)));
    DT_RETURN_IF_ERROR(Expect(calls == 3, absl::StrCat("ended after ", calls)));
    DT_RETURN_IF_ERROR(Expect(job->stop_agreed() && job->stop_signal() == SIGTERM, "the signal"));
    DT_RETURN_IF_ERROR(Expect(model.is_training(), "the mode"));
    const absl::Status end = checkpoints->MaybeSave(engine->step());
    DT_RETURN_IF_ERROR(Expect(absl::IsCancelled(end), end.ToString()));
    DT_RETURN_IF_ERROR(Expect(
        end.message().find("after step 1, which is saved") != std::string::npos, end.ToString()));
    if (context.rank == 0) {
      DT_ASSIGN_OR_RETURN(const std::string records,
                          ReadFile(folder.path() + "/metrics/rank-0.jsonl"));
      const size_t first = records.find("eval/loss");
      DT_RETURN_IF_ERROR(Expect(
          first != std::string::npos && records.find("eval/loss", first + 1) == std::string::npos,
          records));
    }
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace dtrain::engine_evaluate_test
