// ZeRO stage 3: weights that are there while they are read, on every way a model reads them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json.h"
#include "base/status.h"
#include "comm/flight_recorder.h"
#include "dtrain/engine.h"
#include "runtime/optimizer/engine_state.h"
#include "tests/runtime/testing/chain_for_tests.h"
#include "tests/runtime/testing/job_for_tests.h"

namespace dtrain::engine_stage3_test {
namespace {

using testing::Chain;
using testing::ChainWay;
using testing::ExpectSameNumbers;
using ::testing::HasSubstr;
using testing::kLimits;
using testing::MakeChainJob;
using testing::RankContext;
using testing::Tokens;

// Over several micro-batches stages 2 and 3 add the ranks' sums, stages 0 and 1 the micro-batches'
// first: equal to the bit are those that add in the same order.
TEST(EngineStage3Test, TrainsAsTheOtherStagesToTheBitWhateverTheLimits) {
  for (const int size : {1, 2, 3, 4}) {
    for (const int accumulation : {1, 3}) {
      std::vector<ChainWay> ways = {
          {.stage = accumulation == 1 ? 0 : 2, .accumulation = accumulation}};
      for (const auto& limits : kLimits) {
        ways.push_back({.accumulation = accumulation, .more = {limits, limits + 3}});
      }
      ExpectSameNumbers(size, ways);
    }
  }
}

TEST(EngineStage3Test, MixedPrecisionTrainsAsAtStageTwo) {
  for (const char* const precision : {"bf16.enabled=true", "fp16.enabled=true"}) {
    ChainWay smallest_limits{.more = {precision}};
    smallest_limits.more.insert(smallest_limits.more.end(), kLimits[0], kLimits[0] + 3);
    ExpectSameNumbers(2,
                      {{.stage = 2, .more = {precision}}, {.more = {precision}}, smallest_limits});
  }
}

TEST(EngineStage3Test, ASecondShardingInSmallGroupsChangesNoNumber) {
  for (const int accumulation : {1, 3}) {
    std::vector<ChainWay> ways = {{.stage = 2, .accumulation = accumulation}};
    for (const int size : {2, 4}) {
      ways.push_back({.accumulation = accumulation, .more = {kLimits[0], kLimits[0] + 3}});
      ways.back().more.push_back(absl::StrCat("zero_optimization.zero_hpz_partition_size=", size));
    }
    ExpectSameNumbers(4, ways);
  }
}

// The steps that this rank's record names for gathers of groups other than `world`; -1: none.
std::vector<int64_t> StepsOfSmallGathers(const std::string& world) {
  std::vector<int64_t> steps;
  const Json record = comm::FlightRecords();
  for (const Json& entry : record["entries"]) {
    const Json& call = entry["dtrain"];
    if (entry["process_group"][0] != world &&
        absl::StartsWith(call["name"].get<std::string>(), "weights of bucket")) {
      steps.push_back(call["step"].is_null() ? -1 : call["step"].get<int64_t>());
    }
  }
  return steps;
}

TEST(EngineStage3Test, ReportsOfASecondShardingNameTheStep) {
  const auto results = testing::RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
    at::set_num_threads(1);
    const testing::TempFolder folder;
    ChainWay way{.more = {"zero_optimization.zero_hpz_partition_size=2"}};
    way.more.insert(way.more.end(), kLimits[0], kLimits[0] + 3);
    DT_ASSIGN_OR_RETURN(auto job, MakeChainJob(&context, folder.path(), way));
    Chain model;
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
    Tokens source{.rank = context.rank, .size = context.size};
    const auto loss = [&](const at::Tensor& tokens) {
      return Loss(model.Loss(tokens), tokens.size(0));
    };
    for (int step = 0; step < 2; ++step) {
      DT_RETURN_IF_ERROR(engine->Step(source, loss).status());
    }
    const Json world = Json::parse(job->group().FlightRecord());
    const auto steps = StepsOfSmallGathers(world["dtrain"]["groups"][0]["name"]);
    const auto of = [&](int64_t step) { return std::count(steps.begin(), steps.end(), step); };
    return of(1) > 0 && of(2) > 0 && of(1) + of(2) == static_cast<int64_t>(steps.size())
               ? absl::OkStatus()
               : absl::InternalError(absl::StrCat("steps of gathers: ", absl::StrJoin(steps, " ")));
  });
  for (const auto& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

TEST(EngineStage3Test, OffloadedWeightsAndStatesTrainToTheSameBits) {
  const testing::TempFolder disk;
  const std::vector<std::vector<std::string>> tiers = {
      {"zero_optimization.offload_param.device=cpu"},
      {"zero_optimization.offload_param.device=nvme",
       "zero_optimization.offload_param.nvme_path=" + disk.path()},
      {"zero_optimization.offload_param.device=nvme",
       "zero_optimization.offload_param.nvme_path=" + disk.path(),
       "zero_optimization.offload_optimizer.device=nvme",
       "zero_optimization.offload_optimizer.nvme_path=" + disk.path()}};
  std::vector<ChainWay> ways = {{.stage = 0}};
  for (const auto& tier : tiers) {
    ways.push_back({.more = tier});
    ways.back().more.insert(ways.back().more.end(), kLimits[1], kLimits[1] + 3);
  }
  ExpectSameNumbers(2, ways);
}

// One rank alone: what an engine of stage 3 makes of a function of its model.
class EngineStage3AloneTest : public ::testing::Test {
 protected:
  void Make(int stage) {
    at::set_num_threads(1);
    ChainWay way{.stage = stage};
    way.more.insert(way.more.end(), kLimits[0], kLimits[0] + 3);
    job_ = *MakeChainJob(nullptr, folder_.path(), way);
    at::manual_seed(4);
    model_ = std::make_unique<Chain>();
    engine_ = *Engine::Create(*job_, *model_);
  }
  absl::StatusOr<StepReport> Step() {
    Tokens source{.rank = 0, .size = 1, .accumulation = 1};
    return engine_->Step(source, [this](const at::Tensor& tokens) {
      return Loss(model_->Loss(tokens), tokens.size(0));
    });
  }
  testing::TempFolder folder_;
  std::unique_ptr<Job> job_;
  std::unique_ptr<Chain> model_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineStage3AloneTest, ViewsOfAnotherTypeReadTheRightElements) {
  std::vector<double> sums;
  for (const int stage : {0, 3}) {
    Make(stage);
    const at::NoGradGuard no_grad;
    for (const at::Tensor& weight : model_->weights) {
      sums.push_back(weight.view(at::kByte).to(at::kLong).sum().item<double>());
      sums.push_back(at::view_as_complex(weight.view({-1, 2})).abs().sum().item<double>());
    }
    engine_.reset();
  }
  const size_t half = sums.size() / 2;
  for (size_t i = 0; i < half; ++i) {
    EXPECT_EQ(sums[half + i], sums[i]) << i;
  }
}

TEST_F(EngineStage3AloneTest, AWriteThatWouldBeLostIsRefusedByName) {
  Make(3);
  ASSERT_TRUE(Step().ok());
  {
    const at::NoGradGuard no_grad;
    model_->biases[2].clamp_(-1, 1);
  }
  const auto report = Step();
  EXPECT_EQ(report.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(report.status().message()), HasSubstr("parameter bias2 was written to"));
}

TEST_F(EngineStage3AloneTest, AnEngineThatLendsItsParametersDoesNotStep) {
  Make(3);
  absl::Status inside;
  ASSERT_TRUE(engine_->WithParameters([&] { inside = Step().status(); }).ok());
  EXPECT_THAT(std::string(inside.message()), HasSubstr("WithParameters"));
  EXPECT_TRUE(Step().ok());
}

TEST_F(EngineStage3AloneTest, FrozenParametersOfAnotherTypeStayWholeAndAreToldOnce) {
  for (const int stage : {2, 3}) {
    const testing::TempFolder folder;
    auto job = MakeChainJob(nullptr, folder.path(), {.stage = stage});
    Chain model;
    model.register_parameter("frozen", at::zeros({1000}), /*requires_grad=*/false);
    model.register_parameter("places", at::arange(500), /*requires_grad=*/false);
    ::testing::internal::CaptureStderr();
    const auto engine = Engine::Create(**job, model);
    const std::string log = ::testing::internal::GetCapturedStderr();
    ASSERT_TRUE(engine.ok()) << engine.status();
    EXPECT_EQ(log.find("1 frozen parameters of others stay whole on every rank, 4000 bytes") !=
                  std::string::npos,
              stage == 3)
        << log;
  }
}

TEST(EngineStage3Test, AnEvaluationThatFailsOnOneRankEndsTheOtherAndSaysWhy) {
  const auto results = testing::RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
    at::set_num_threads(1);
    const testing::TempFolder folder;
    DT_ASSIGN_OR_RETURN(auto job, MakeChainJob(&context, folder.path(), {}));
    Chain model;
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
    Tokens source{.rank = context.rank, .size = context.size, .accumulation = 1};
    return engine
        ->Evaluate(source,
                   [&](const at::Tensor& tokens) -> Loss {
                     if (context.rank == 1) {
                       throw std::runtime_error("a label is out of range");
                     }
                     return {model.Loss(tokens), tokens.size(0)};
                   })
        .status();
  });
  EXPECT_THAT(std::string(results[1].status.message()), HasSubstr("a label is out of range"));
  EXPECT_FALSE(results[0].status.ok());
  EXPECT_LT(results[0].duration, absl::Seconds(45));
}

TEST(EngineStage3Test, OverTcpToo) {
  ChainWay way{.more = {"comm.transport=tcp"}};
  way.more.insert(way.more.end(), kLimits[1], kLimits[1] + 3);
  ExpectSameNumbers(2, {{.stage = 0, .more = {"comm.transport=tcp"}}, way});
}

// A student learns from a teacher that learns too.
TEST(EngineStage3Test, TwoEnginesInOneProgramTrainSideBySide) {
  const auto numbers_at = [](int stage) {
    auto cluster = testing::Cluster::Start({.size = 2}, [stage](RankContext& context) {
      at::set_num_threads(1);
      const testing::TempFolder folder;
      const auto train = [&]() -> absl::Status {
        DT_ASSIGN_OR_RETURN(auto job, MakeChainJob(&context, folder.path(), {.stage = stage}));
        at::manual_seed(9);
        Chain teacher;
        Chain student;
        DT_ASSIGN_OR_RETURN(auto first, Engine::Create(*job, teacher));
        DT_ASSIGN_OR_RETURN(auto second, Engine::Create(*job, student));
        Tokens a{.rank = context.rank, .size = context.size, .accumulation = 1};
        Tokens b = a;
        std::vector<double> numbers;
        for (int i = 0; i < 3; ++i) {
          DT_ASSIGN_OR_RETURN(const auto taught, first->Step(a, [&](const at::Tensor& tokens) {
            return Loss(teacher.Loss(tokens), tokens.size(0));
          }));
          DT_ASSIGN_OR_RETURN(const auto learnt, second->Step(b, [&](const at::Tensor& tokens) {
            const at::Tensor goal = teacher.weights[0].detach();
            return Loss(student.Loss(tokens) + (student.weights[0] - goal).square().sum(),
                        tokens.size(0));
          }));
          numbers.insert(numbers.end(), {taught.loss, learnt.loss});
        }
        return context.store->Set("numbers/" + std::to_string(context.rank),
                                  DumpJson(Json(numbers)), Deadline::After(absl::Seconds(10)));
      };
      return train();
    });
    const auto text = (*cluster)->Result("numbers/0");
    for (const auto& result : (*cluster)->Join()) {
      EXPECT_TRUE(result.status.ok()) << result.status;
    }
    return text.value_or("");
  };
  const std::string plain = numbers_at(0);
  EXPECT_THAT(plain, HasSubstr(","));
  EXPECT_EQ(numbers_at(3), plain);
}

using EngineStage3DeathTest = ::testing::Test;

TEST(EngineStage3DeathTest, CodeThatIsNoOperationIsToldWhichParameterItRead) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto read = [] {
    at::set_num_threads(1);
    const testing::TempFolder folder;
    auto job = MakeChainJob(nullptr, folder.path(), {});
    Chain model;
    auto engine = Engine::Create(**job, model);
    const volatile float* const data = model.weights[3].const_data_ptr<float>();
    static_cast<void>(data[5]);
  };
  EXPECT_EXIT(read(), ::testing::ExitedWithCode(64), "parameter weight3 was read by code");
}

TEST(EngineStage3Test, RanksThatReadDifferentWeightsEndWithAnErrorThatNamesThem) {
  const auto results = testing::RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
    at::set_num_threads(1);
    const testing::TempFolder folder;
    DT_ASSIGN_OR_RETURN(auto job, MakeChainJob(&context, folder.path(), {}));
    Chain model;
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
    Tokens source{.rank = context.rank, .size = context.size, .accumulation = 1};
    return engine
        ->Step(source,
               [&](const at::Tensor& tokens) {
                 const at::Tensor first = context.rank == 0 ? model.unused : model.table;
                 return Loss(model.Loss(tokens) + first.sum(), tokens.size(0));
               })
        .status();
  });
  for (const auto& result : results) {
    EXPECT_FALSE(result.status.ok());
    EXPECT_THAT(std::string(result.status.message()), HasSubstr("weights of bucket"));
    EXPECT_LT(result.duration, absl::Seconds(45));
  }
}

TEST(EngineStage3Test, ARankKeepsItsShareAndNoMore) {
  const auto results = testing::RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
    at::set_num_threads(1);
    const testing::TempFolder folder;
    DT_ASSIGN_OR_RETURN(auto job, MakeChainJob(&context, folder.path(), {}));
    Chain model;
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
    const EngineState& state = engine->state();
    const int64_t total = state.flat->layout().total_elements();
    if (state.shard_values.numel() > total / 2 + 4096 ||
        state.optimizer.slots[0].tensor.numel() > total / 2 + 4096 ||
        state.flat->gradients().defined() || state.flat->value_range() == nullptr) {
      return absl::InternalError("more than a share");
    }
    return absl::OkStatus();
  });
  for (const auto& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

}  // namespace
}  // namespace dtrain::engine_stage3_test
