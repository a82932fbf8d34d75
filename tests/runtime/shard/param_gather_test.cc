// Weights that are gathered during the next forward (zero_optimization.overlap_param_gather): the
// same numbers, gathers that are under way when forward begins, and no stale weight for anybody.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <functional>
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
#include "base/status.h"
#include "dtrain/checkpointer.h"
#include "dtrain/engine.h"
#include "runtime/optimizer/engine_state.h"
#include "tests/runtime/testing/chain_for_tests.h"
#include "tests/runtime/testing/fault_witness.h"
#include "tests/runtime/testing/gather_pair.h"
#include "tests/runtime/testing/job_for_tests.h"

namespace dtrain::param_gather_test {
namespace {

using testing::Await;
using testing::Chain;
using testing::ChainWay;
using testing::ExpectSameNumbers;
using ::testing::HasSubstr;
using testing::MakeChainJob;
using ::testing::Not;
using testing::NumbersOf;
using testing::Overlapping;
using testing::Pair;
using testing::RankContext;
using testing::Tokens;

TEST(ParamGatherTest, TrainsToTheSameBits) {
  for (const int size : {1, 2, 3, 4}) {
    for (const int stage : {0, 1, 2}) {
      for (const int accumulation : {1, 3}) {
        const ChainWay way{.stage = stage, .accumulation = accumulation};
        ExpectSameNumbers(size, {way, Overlapping(way)});
      }
    }
  }
}

struct Kind {
  const char* name;
  std::vector<std::string> overrides;
};

class ParamGatherKinds : public ::testing::TestWithParam<std::tuple<Kind, int>> {};

INSTANTIATE_TEST_SUITE_P(
    All, ParamGatherKinds,
    ::testing::Combine(
        ::testing::Values(
            Kind{"bf16", {"bf16.enabled=true"}}, Kind{"fp16", {"fp16.enabled=true"}},
            Kind{"clipping", {"gradient_clipping=0.01"}},
            Kind{"sharedpages", {"deterministic=false"}}, Kind{"tcp", {"comm.transport=tcp"}},
            Kind{"lamb", {"optimizer.type=Lamb"}}, Kind{"muon", {"optimizer.type=Muon"}},
            Kind{"offload", {"zero_optimization.offload_optimizer.device=cpu"}},
            Kind{"offloadpart",
                 {"bf16.enabled=true", "zero_optimization.offload_optimizer.device=nvme",
                  "zero_optimization.offload_optimizer.nvme_path=/tmp",
                  "zero_optimization.offload_optimizer.ratio=0.6"}}),
        ::testing::Values(1, 2)),
    [](const auto& test) {
      return absl::StrCat(std::get<0>(test.param).name, "_stage", std::get<1>(test.param));
    });

// What cannot follow the step there is done within it.
INSTANTIATE_TEST_SUITE_P(
    Stage0, ParamGatherKinds,
    ::testing::Combine(
        ::testing::Values(
            Kind{"bf16", {"bf16.enabled=true"}}, Kind{"fp16", {"fp16.enabled=true"}},
            Kind{"bf16states", {"bf16.enabled=true", "bf16.bf16_optimizer_states=true"}},
            Kind{"clipping", {"gradient_clipping=0.01"}}, Kind{"tcp", {"comm.transport=tcp"}},
            Kind{"lion", {"optimizer.type=Lion"}}, Kind{"lamb", {"optimizer.type=Lamb"}},
            Kind{"muon", {"optimizer.type=Muon"}}, Kind{"wire", {"comm.wire_dtype=bf16"}},
            Kind{"int8", {"comm.compression.type=int8", "comm.compression.start_step=1"}}),
        ::testing::Values(0)),
    [](const auto& test) { return std::string(std::get<0>(test.param).name); });

TEST_P(ParamGatherKinds, TrainsToTheSameBits) {
  const auto& [kind, stage] = GetParam();
  const ChainWay way{.stage = stage, .more = kind.overrides, .lends = true};
  ExpectSameNumbers(2, {way, Overlapping(way)});
}

double RawSum(const Chain& model) {
  double sum = 0;
  for (const at::Tensor& parameter : model.parameters()) {
    const auto* const data = parameter.const_data_ptr<float>();
    for (int64_t i = 0; i < parameter.numel(); ++i) {
      sum += data[i] * static_cast<double>(1 + i % 7);
    }
  }
  return sum;
}

// A program that looks at its weights between steps in every way, and changes some.
absl::Status Meddle(RankContext& context, const std::string& folder, const ChainWay& way,
                    std::vector<double>& numbers) {
  at::set_num_threads(1);
  DT_ASSIGN_OR_RETURN(auto job, MakeChainJob(&context, folder, way));
  at::manual_seed(3);
  Chain model;
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
  DT_ASSIGN_OR_RETURN(auto checkpoints, Checkpointer::Open(*job));
  checkpoints->Track("engine", *engine);
  DT_RETURN_IF_ERROR(checkpoints->RestoreLatest());
  Tokens source{.call = engine->step(), .rank = context.rank, .size = context.size};
  Tokens validation{.rank = context.rank, .size = context.size};
  const auto loss = [&](const at::Tensor& tokens) {
    return Loss(model.Loss(tokens), tokens.size(0));
  };
  const at::NoGradGuard no_grad;
  const std::vector<std::function<absl::Status()>> looks = {
      [&] {
        numbers.push_back(model.weights[2].sum().item<double>());
        return absl::OkStatus();
      },
      [&] {
        numbers.push_back(RawSum(model));
        return absl::OkStatus();
      },
      [&] {
        model.weights[1].mul_(0.9);
        model.biases[4].mutable_data_ptr<float>()[3] = 0.25F;
        return absl::OkStatus();
      },
      [&]() -> absl::Status {
        DT_ASSIGN_OR_RETURN(const double evaluated, engine->Evaluate(validation, loss));
        numbers.push_back(evaluated);
        return absl::OkStatus();
      },
      [&] { return checkpoints->MaybeSave(engine->step()); },
      [&] { return engine->WithParameters([&] { numbers.push_back(RawSum(model)); }); },
      [&] {
        const EngineState& state = engine->state();
        numbers.push_back(state.flat->values().const_data_ptr<float>()[0]);
        return absl::OkStatus();
      }};
  while (engine->step() < static_cast<int64_t>(2 * looks.size())) {
    {
      const at::AutoGradMode with_grad(true);
      DT_ASSIGN_OR_RETURN(const auto report, engine->Step(source, loss));
      numbers.push_back(report.loss);
    }
    DT_RETURN_IF_ERROR(looks[static_cast<size_t>(engine->step()) % looks.size()]());
  }
  DT_RETURN_IF_ERROR(checkpoints->Finish());
  return engine->WithParameters([&] { numbers.push_back(RawSum(model)); });
}

TEST(ParamGatherTest, ProgramsSeeAndChangeTheNewWeightsBetweenSteps) {
  for (const int stage : {0, 1, 2}) {
    std::vector<std::vector<double>> runs;
    for (const bool overlaps : {false, true}) {
      const testing::TempFolder folder;
      ChainWay way{.stage = stage, .more = {"checkpoint.interval=4"}};
      way = overlaps ? Overlapping(way) : way;
      const testing::RankNumbers body = [&](RankContext& context, std::vector<double>& numbers) {
        return Meddle(context, folder.path(), way, numbers);
      };
      runs.push_back(NumbersOf(2, body));
      ASSERT_GT(runs.back().size(), 20U);
      const std::vector<double> resumed = NumbersOf(2, body);  // From the last step.
      EXPECT_EQ(resumed, std::vector<double>{runs.back().back()});
    }
    EXPECT_EQ(runs[1], runs[0]) << "stage " << stage;
  }
}

// A skipped step gathers nothing; what the next forward reads is that of the step before.
TEST(ParamGatherTest, SkippedStepsLeaveTheWeightsAsTheyWere) {
  for (const int stage : {0, 1, 2}) {
    std::vector<std::vector<double>> runs;
    for (const bool overlaps : {false, true}) {
      const testing::TempFolder folder;
      ChainWay way{
          .stage = stage,
          .more = {"fp16.enabled=true", "fp16.initial_scale_power=20", "fp16.hysteresis=1"}};
      way = overlaps ? Overlapping(way) : way;
      runs.push_back(
          NumbersOf(2, [&](RankContext& context, std::vector<double>& numbers) -> absl::Status {
            at::set_num_threads(1);
            DT_ASSIGN_OR_RETURN(auto job, MakeChainJob(&context, folder.path(), way));
            at::manual_seed(3);
            Chain model;
            DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
            Tokens source{.rank = context.rank, .size = context.size};
            for (int i = 0; i < 20; ++i) {
              DT_ASSIGN_OR_RETURN(const auto report,
                                  engine->Step(source, [&](const at::Tensor& tokens) {
                                    return Loss(model.Loss(tokens), tokens.size(0));
                                  }));
              numbers.push_back(report.loss);
            }
            numbers.push_back(static_cast<double>(engine->state().skipped));
            return absl::OkStatus();
          }));
    }
    ASSERT_EQ(runs[0].size(), 21U);
    EXPECT_GT(runs[0].back(), 0);
    EXPECT_LT(runs[0].back(), 15);
    EXPECT_EQ(runs[1], runs[0]) << "stage " << stage;
  }
}

void ExpectBothOk(const std::vector<testing::RankResult>& results) {
  for (const auto& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

// Rank 1 enters no gather of the second step before rank 0's third forward runs.
TEST(ParamGatherTest, AllGathersAreUnderWayWhenForwardBegins) {
  for (const char* const transport : {"tcp", "shm"}) {
    for (const int stage : {0, 1, 2}) {
      ExpectBothOk(testing::RunRanks({.size = 2}, [&](RankContext& context) -> absl::Status {
        Pair pair;
        DT_RETURN_IF_ERROR(pair.Make(
            context, {.stage = stage, .more = {absl::StrCat("comm.transport=", transport)}},
            [&](int64_t update, const std::string&) {
              if (update == 2) {
                Await(context, "forward");
              }
            }));
        DT_RETURN_IF_ERROR(pair.Step().status());
        DT_RETURN_IF_ERROR(pair.Step().status());
        size_t pending = 0;
        DT_ASSIGN_OR_RETURN(const StepReport report, pair.Step([&] {
          pending = pair.Gathers(/*pending=*/true).size();
          if (context.rank == 0) {
            context.Announce("forward").IgnoreError();
          }
        }));
        const size_t all = pair.Gathers(/*pending=*/false).size();  // As many in each step.
        const auto& shards = pair.engine->state().shards;
        if (context.rank == 0 && (pending != all || pending == 0 || report.exposed_comm_s <= 0)) {
          return absl::InternalError(absl::StrCat(pending, " gathers under way of ", all,
                                                  ", waited ", report.exposed_comm_s, " s"));
        }
        // At stage 0 the buckets in the middle were reduced whole.
        return shards == nullptr ? (pair.GathersSkipSome() ? absl::OkStatus()
                                                           : absl::InternalError("all gathered"))
               : all == shards->buckets().size()
                   ? absl::OkStatus()
                   : absl::InternalError(absl::StrCat(all, " gathers"));
      }));
    }
  }
}

// Rank 1 updates the last layer, or gathers its gradients, when rank 0's forward has read the
// first.
absl::Status ReadTheFirstLayerAlone(RankContext& context, int stage) {
  Pair pair;
  DT_RETURN_IF_ERROR(pair.Make(context, {.stage = stage, .more = {"comm.transport=tcp"}},
                               [&](int64_t update, const std::string& name) {
                                 if (update == 2 && absl::StrContains(name, "weight6")) {
                                   Await(context, "first read");
                                 }
                               }));
  DT_RETURN_IF_ERROR(pair.Step().status());
  DT_RETURN_IF_ERROR(pair.Step().status());
  size_t pending = 0;
  DT_RETURN_IF_ERROR(pair.Step([&] {
                           const at::NoGradGuard no_grad;
                           pair.model.table.sum();  // Not before its buckets have come.
                           pending = pair.Gathers(/*pending=*/true).size();
                           if (context.rank == 0) {
                             context.Announce("first read").IgnoreError();
                           }
                         })
                         .status());
  const std::vector<std::string> all = pair.Gathers(/*pending=*/false);
  if (all.empty() || (context.rank == 0 && (pending == 0 || pending >= all.size()))) {
    return absl::InternalError(absl::StrCat(pending, " gathers under way of ", all.size()));
  }
  // The table, registered first, is read first: of what is gathered its bucket is the last or the
  // last but one. Bucket 0 is what is not read, or read last.
  const auto number = [](const std::string& name) {  // "values of bucket 7 (weight3)".
    return std::stoi(name.substr(name.find("bucket ") + 7));
  };
  const auto behind = std::count_if(all.begin(), all.end(), [&](const std::string& name) {
    return number(name) > number(all.front());
  });
  return behind <= 1 ? absl::OkStatus() : absl::InternalError(absl::StrJoin(all, ", "));
}

TEST(ParamGatherTest, ForwardWaitsForWhatItReadsAndThatComesFirst) {
  for (const int stage : {0, 2}) {
    ExpectBothOk(testing::RunRanks({.size = 2}, [stage](RankContext& context) {
      return ReadTheFirstLayerAlone(context, stage);
    }));
  }
}

// Rank 1 updates nothing before rank 0 stands in the fault of a weight that it reads by a pointer.
TEST(ParamGatherTest, APointerReadBetweenStepsGivesTheNewWeights) {
  for (const int stage : {0, 1}) {
    ExpectBothOk(testing::RunRanks({.size = 2}, [stage](RankContext& context) -> absl::Status {
      Pair pair;
      DT_RETURN_IF_ERROR(
          pair.Make(context, {.stage = stage}, [&](int64_t update, const std::string&) {
            if (update == 2) {
              Await(context, "fault");
            }
          }));
      DT_RETURN_IF_ERROR(pair.Step().status());
      const double first = RawSum(pair.model);
      DT_RETURN_IF_ERROR(pair.Step().status());
      double second = 0;
      if (context.rank == 0) {
        const size_t pending = pair.Gathers(/*pending=*/true).size();
        testing::FaultWitness witness([&] { context.Announce("fault").IgnoreError(); });
        second = RawSum(pair.model);
        if (pending != pair.Gathers(/*pending=*/false).size() || witness.faults() == 0) {
          return absl::InternalError(
              absl::StrCat(pending, " gathers under way, ", witness.faults(), " faults"));
        }
      } else {
        second = RawSum(pair.model);
      }
      double whole = 0;
      DT_RETURN_IF_ERROR(pair.engine->WithParameters([&] { whole = RawSum(pair.model); }));
      return second == whole && second != first
                 ? absl::OkStatus()
                 : absl::InternalError(absl::StrCat(first, ", ", second, ", ", whole));
    }));
  }
}

// Rank 1 dies in its second update, of which rank 0 has made its part.
absl::Status LoseRankOne(RankContext& context, int stage, const char* transport,
                         const std::function<void(Pair&)>& between) {
  Pair pair;
  DT_RETURN_IF_ERROR(
      pair.Make(context, {.stage = stage, .more = {absl::StrCat("comm.transport=", transport)}},
                [&](int64_t update, const std::string&) {
                  if (update == 2) {
                    Await(context, "updated");
                    raise(SIGKILL);
                  }
                }));
  DT_RETURN_IF_ERROR(pair.Step().status());
  DT_RETURN_IF_ERROR(pair.Step().status());
  DT_RETURN_IF_ERROR(context.Announce("updated"));
  between(pair);
  const absl::Status lost = pair.Step().status();
  const absl::Status refused = pair.Step().status();
  const absl::Status exported = pair.engine->state().settled;
  return absl::StrContains(refused.message(), "cannot go on after the step that failed") &&
                 !exported.ok()
             ? lost
             : absl::InternalError(absl::StrCat(refused.message(), "; ", exported.message()));
}

TEST(ParamGatherTest, APeerThatDiesMeanwhileFailsTheNextStepWithOneLine) {
  for (const char* const transport : {"tcp", "shm"}) {
    for (const int stage : {0, 2}) {
      const auto results = testing::RunRanks({.size = 2}, [&](RankContext& context) {
        return LoseRankOne(context, stage, transport, [](Pair&) {});
      });
      EXPECT_EQ(results[1].signal, SIGKILL);
      const std::string text(results[0].status.message());
      EXPECT_EQ(results[0].status.code(), absl::StatusCode::kUnavailable) << results[0].status;
      EXPECT_THAT(text, HasSubstr("rank 1"));
      EXPECT_THAT(text, HasSubstr(stage == 0 ? "gradients of bucket" : "values of bucket"));
      EXPECT_THAT(text, Not(HasSubstr("\n")));
      EXPECT_LT(results[0].duration, absl::Seconds(45));
    }
  }
}

TEST(ParamGatherTest, APointerReadOfWhatDidNotComeEndsTheProcess) {
  for (const int stage : {0, 2}) {
    const auto results = testing::RunRanks({.size = 2}, [stage](RankContext& context) {
      return LoseRankOne(context, stage, "shm", [](Pair& pair) { RawSum(pair.model); });
    });
    EXPECT_EQ(results[0].exit_code, 75) << results[0].status;
  }
}

// Rank 1 makes its part of the second update when rank 0's third step has failed.
class ParamGatherStages : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(All, ParamGatherStages, ::testing::Values(0, 1));

TEST_P(ParamGatherStages, ARankWhoseStepFailsHasAllWeightsOfTheStepBefore) {
  const int stage = GetParam();
  const std::vector<double> whole =
      NumbersOf(2, [stage](RankContext& context, std::vector<double>& numbers) -> absl::Status {
        Pair pair;
        DT_RETURN_IF_ERROR(
            pair.Make(context, {.stage = stage}, [](int64_t, const std::string&) {}));
        DT_RETURN_IF_ERROR(pair.Step().status());
        DT_RETURN_IF_ERROR(pair.Step().status());
        return pair.engine->WithParameters([&] { numbers.push_back(RawSum(pair.model)); });
      });
  ASSERT_EQ(whole.size(), 1U);
  const auto results = testing::RunRanks({.size = 2}, [&](RankContext& context) -> absl::Status {
    Pair pair;
    DT_RETURN_IF_ERROR(
        pair.Make(context, {.stage = stage}, [&](int64_t update, const std::string&) {
          if (update == 2) {
            Await(context, "failing");
          }
        }));
    DT_RETURN_IF_ERROR(pair.Step().status());
    DT_RETURN_IF_ERROR(pair.Step().status());
    const absl::Status failed = pair.Step([&] {
                                      if (context.rank == 0) {
                                        context.Announce("failing").IgnoreError();
                                        throw std::runtime_error("a label is out of range");
                                      }
                                    })
                                    .status();
    return context.rank == 1 || RawSum(pair.model) == whole[0]
               ? failed
               : absl::InternalError("weights of two steps");
  });
  EXPECT_THAT(std::string(results[0].status.message()), HasSubstr("a label is out of range"));
  EXPECT_FALSE(results[1].status.ok());
  EXPECT_LT(results[1].duration, absl::Seconds(45));
}

}  // namespace
}  // namespace dtrain::param_gather_test
