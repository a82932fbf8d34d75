// Parameters that are cut by ranks and buckets on a GPU, over the fakes: ZeRO stage 3, whose
// weights come and go, gradients in 16 bits on the wire, and optimizers that look at whole
// parameters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "dtrain/engine.h"
#include "runtime/checkpoint/engine_snapshot.h"
#include "runtime/optimizer/engine_state.h"
#include "tests/runtime/testing/device_net.h"
#include "tests/runtime/testing/device_training.h"
#include "tests/runtime/testing/experts_for_tests.h"
#include "tests/runtime/testing/fake_device.h"
#include "tests/runtime/testing/job_for_tests.h"

namespace dtrain::engine_device_shards_test {
namespace {

using testing::ExpectNear;
using testing::ExpectSame;
using testing::FakeGpu;
using testing::IsTried;
using testing::MakeJob;
using testing::Net;
using testing::Outcome;
using testing::OutcomeOf;
using testing::Source;
using testing::Way;

// Values are read where they are gathered, so bits are those of values that are always there.
TEST(EngineDeviceShardsTest, StageThreeGivesTheBitsOfStageTwoWhateverMayBeLive) {
  const std::vector<std::pair<const char*, const char*>> limits = {
      {"1", "0"}, {"6000", "100"}, {"1000000", "0"}};
  for (const char* const precision : {"bf16.enabled=false", "bf16.enabled=true"}) {
    for (const Way::Place place : {Way::Place::kNccl, Way::Place::kStaged}) {
      const Way way{.place = place, .accumulation = 2, .more = {precision, "deterministic=true"}};
      Way stage2 = way;
      stage2.more.emplace_back("zero_optimization.stage=2");
      const Outcome whole = OutcomeOf(2, stage2);
      for (const auto& [live, persistent] : limits) {
        SCOPED_TRACE(absl::StrCat(precision, ", place ", static_cast<int>(place), ", live ", live,
                                  ", persistent ", persistent));
        Way stage3 = way;
        for (const std::string& setting :
             {std::string("stage=3"), absl::StrCat("stage3_max_live_parameters=", live),
              absl::StrCat("stage3_param_persistence_threshold=", persistent)}) {
          stage3.more.push_back("zero_optimization." + setting);
        }
        const Outcome shared_out = OutcomeOf(2, stage3);
        ExpectSame(shared_out, whole);
      }
    }
  }
}

// Frozen weights have blocks of memory and collectives of their own.
TEST(EngineDeviceShardsTest, FrozenWeightsAreGatheredAsTheOthersAre) {
  const testing::TempFolder disk;
  const std::vector<std::vector<std::string>> ways = {
      {"zero_optimization.stage3_max_live_parameters=1000000"},
      {"zero_optimization.stage3_max_live_parameters=1"},
      {"zero_optimization.offload_param.device=cpu"},
      {"zero_optimization.offload_param.device=nvme",
       "zero_optimization.offload_param.nvme_path=" + disk.path()},
      {"zero_optimization.zero_hpz_partition_size=3"}};  // Both kinds over one small group.
  for (const char* const precision : {"bf16.enabled=false", "bf16.enabled=true"}) {
    for (const Way::Place place : {Way::Place::kNccl, Way::Place::kStaged}) {
      const Way way{.place = place,
                    .waits = true,
                    .width = 160,
                    .frozen = true,
                    .more = {precision, "deterministic=true"}};
      const Outcome whole = OutcomeOf(3, With(way, {"zero_optimization.stage=2"}));
      const Way stage3 = With(way, {"zero_optimization.stage=3",
                                    "zero_optimization.stage3_param_persistence_threshold=200"});
      for (const auto& more : ways) {
        SCOPED_TRACE(absl::StrCat(precision, ", place ", static_cast<int>(place), ", ", more[0]));
        ExpectSame(OutcomeOf(3, With(stage3, more)), whole);
      }
    }
  }
}

// The host's calls are in one order, whichever experts a rank uses; gradients are held in slots of
// the device until a unit has ended.
TEST(EngineDeviceShardsTest, ExpertsOfAUnitTrainAsInOneProcessThoughRanksUseOthers) {
  for (const Way::Place place : {Way::Place::kNccl, Way::Place::kStaged}) {
    for (const testing::Router& router :
         {testing::Router(testing::AnotherOnEachRank), testing::Router(testing::NoneOnSomeRanks)}) {
      testing::ExpertsWay way{.accumulation = 2, .router = router};
      way.units = {{"first"}, {"second"}};
      comm::FakeFabric fabric;
      const auto results =
          testing::RunRanks({.size = way.size}, [&](testing::RankContext& context) -> absl::Status {
            at::set_num_threads(1);
            FakeGpu gpu(&fabric);
            const testing::TempFolder folder;
            const Way on_device{.place = place, .more = testing::ExpertsOverrides(way)};
            DT_ASSIGN_OR_RETURN(auto job, MakeJob(&context, folder.path(), on_device, &gpu));
            DT_ASSIGN_OR_RETURN(const auto outcome, testing::TrainExperts(*job, way));
            return testing::CompareExperts(outcome, testing::ExpectedOfExperts(way), 1e-4);
          });
      for (const auto& result : results) {
        EXPECT_TRUE(result.status.ok()) << result.status;
      }
    }
  }
}

// Units of very different sizes take more than what may be live of them: a block to run ahead is as
// large as the largest.
TEST(EngineDeviceShardsTest, BlocksOfUnitsAreCountedToWhatMustFitBeforeAnyIsTaken) {
  const auto make = [](size_t free_bytes) -> absl::StatusOr<int64_t> {
    at::set_num_threads(1);
    comm::FakeFabric fabric;
    FakeGpu gpu(&fabric);
    gpu.cuda.SetFreeMemory(free_bytes);
    const testing::TempFolder folder;
    const Way way{.place = Way::Place::kNccl,
                  .more = {"deterministic=true", "zero_optimization.stage=3",
                           "zero_optimization.stage3_param_persistence_threshold=0",
                           "zero_optimization.stage3_max_live_parameters=20000"}};
    DT_ASSIGN_OR_RETURN(auto job, MakeJob(nullptr, folder.path(), way, &gpu));
    Net net(/*segments=*/false, /*width=*/160);
    EngineOptions options;
    options.units = {{"a"}};
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, net, options));
    return engine->state().live->bytes();
  };
  // 19,235 weights with states of 16 bytes, a fresh gradient of 57,600 bytes, two slots of 65,536
  // for its bucket, and two blocks of 65,536 for what has 76,940 bytes: 627,504 bytes.
  const absl::StatusOr<int64_t> fits = make(640'000);
  ASSERT_TRUE(fits.ok()) << fits.status();
  EXPECT_EQ(*fits, 2 * 65'536);
  const absl::Status refused = make(600'000).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("take 0.000628 GB on each"));
}

// Gathers take them from the host, through their place in the bucket.
TEST(EngineDeviceShardsTest, OffloadedWeightsGiveTheBitsOfWeightsOnTheDevice) {
  struct Case {
    int size;
    Way::Place place;
    const char* precision;
  };
  for (const Case& test : {Case{3, Way::Place::kNccl, "bf16.enabled=false"},
                           Case{1, Way::Place::kNccl, "bf16.enabled=true"},
                           Case{3, Way::Place::kStaged, "bf16.enabled=true"},
                           Case{2, Way::Place::kNccl, "fp16.enabled=true"}}) {
    SCOPED_TRACE(absl::StrCat(test.precision, ", ", test.size, " ranks, place ",
                              static_cast<int>(test.place)));
    Way way{.place = test.place,
            .accumulation = 2,
            .waits = true,
            .more = {test.precision, "zero_optimization.stage=3",
                     "zero_optimization.stage3_param_persistence_threshold=100"}};
    const Outcome near = OutcomeOf(test.size, way);
    way.more.emplace_back("zero_optimization.offload_optimizer.device=cpu");
    way.more.emplace_back("zero_optimization.offload_param.device=cpu");
    for (const char* const live : {"1000000", "1"}) {
      way.more.push_back(absl::StrCat("zero_optimization.stage3_max_live_parameters=", live));
      const Outcome far = OutcomeOf(test.size, way);
      EXPECT_EQ(far.losses, near.losses) << live;
      EXPECT_EQ(far.norms, near.norms) << live;
      EXPECT_EQ(far.weights, near.weights) << live;
    }
  }
}

TEST(EngineDeviceShardsTest, SixteenBitsOnTheWireGiveWhatTheyGiveOnTheHost) {
  const Outcome whole = OutcomeOf(2, {.place = Way::Place::kNccl, .more = {"deterministic=true"}});
  for (const bool bf16 : {true, false}) {
    const char* const wire = bf16 ? "comm.wire_dtype=bf16" : "comm.wire_dtype=fp16";
    for (const int stage : {0, 1, 2, 3}) {
      const std::string zero = absl::StrCat("zero_optimization.stage=", stage);
      const Outcome host = OutcomeOf(2, {.more = {zero, wire}});
      for (const Way::Place place : {Way::Place::kNccl, Way::Place::kStaged}) {
        if (!IsTried({bf16, stage, static_cast<int>(place)})) {
          continue;
        }
        SCOPED_TRACE(absl::StrCat(wire, ", stage ", stage, ", place ", static_cast<int>(place)));
        const Outcome device = OutcomeOf(2, {.place = place, .more = {zero, wire}});
        ExpectNear(device, host, 2e-4);
        EXPECT_NE(device.norms, whole.norms) << "gradients were rounded on their way";
      }
    }
  }
}

// Parameters are cut by ranks and buckets; what looks at whole ones finds them whole.
TEST(EngineDeviceShardsTest, OptimizersOfWholeParametersTrainAsOnTheHost) {
  for (const bool lamb : {true, false}) {
    const std::string optimizer = absl::StrCat(R"(optimizer={"type":")", lamb ? "Lamb" : "Muon",
                                               R"(","params":{"lr":0.01,"weight_decay":0.1}})");
    for (const bool fp16 : {false, true}) {
      const char* const precision = fp16 ? "fp16.enabled=true" : "bf16.enabled=false";
      for (const int stage : {0, 1, 2, 3}) {
        const std::string zero = absl::StrCat("zero_optimization.stage=", stage);
        for (const int size : {1, 3}) {
          if (!IsTried({lamb, fp16, stage, size / 2})) {
            continue;
          }
          const Outcome host = OutcomeOf(size, {.more = {optimizer, precision, zero}});
          EXPECT_NE(host.losses[0], host.losses[5]);
          for (const Way::Place place : {Way::Place::kNccl, Way::Place::kStaged}) {
            SCOPED_TRACE(absl::StrCat(optimizer, ", ", precision, ", ", size, " ranks, stage ",
                                      stage, ", place ", static_cast<int>(place)));
            const Outcome device =
                OutcomeOf(size, {.place = place, .more = {optimizer, precision, zero}});
            ExpectNear(device, host, fp16 ? 5e-3 : 5e-5);
          }
        }
      }
    }
  }
}

TEST(EngineDeviceShardsTest, ANonFiniteStepLeavesOptimizersOfWholeParametersAsTheyWere) {
  for (const char* const optimizer :
       {R"(optimizer={"type":"Lamb"})", R"(optimizer={"type":"Muon"})"}) {
    const Way host{.bad_step = 2, .more = {optimizer, "bf16.enabled=true"}};
    Way device = host;
    device.place = Way::Place::kNccl;
    const Outcome expected = OutcomeOf(2, host);
    const Outcome outcome = OutcomeOf(2, device);
    EXPECT_EQ(outcome.skipped, expected.skipped) << optimizer;
    EXPECT_EQ(outcome.skipped[2], 1) << optimizer;
    for (size_t i = 0; i < expected.weights.size(); ++i) {
      ASSERT_NEAR(outcome.weights[i], expected.weights[i], 1e-2) << optimizer;  // bf16's 8 bits.
    }
  }
}

// The bytes that a snapshot copied to the host of each tensor of the model, by name.
std::map<std::string, std::vector<std::byte>> SavedModel(const std::vector<std::string>& more) {
  comm::FakeFabric fabric;
  FakeGpu gpu(&fabric);
  const testing::TempFolder folder;
  auto job = MakeJob(nullptr, folder.path(), {.place = Way::Place::kNccl, .more = more}, &gpu);
  EXPECT_TRUE(job.ok()) << job.status();
  at::manual_seed(3);
  Net net;
  auto engine = Engine::Create(**job, net);
  EXPECT_TRUE(engine.ok()) << engine.status();
  Source source{0, 1, 1};
  for (int i = 0; i < 3; ++i) {
    const auto step =
        (*engine)->Step(source, [&](const at::Tensor& x) { return Loss(net.Loss(x), x.size(0)); });
    EXPECT_TRUE(step.ok()) << step.status();
  }
  EngineSnapshot snapshot;
  const absl::Status taken = EngineSnapshots((*engine)->state(), {}, "").AddTo(snapshot);
  EXPECT_TRUE(taken.ok()) << taken;
  EXPECT_TRUE(snapshot.source.ModelTensors().ok());  // Completes the records.
  EXPECT_EQ(snapshot.source.job.zero_stage, more.empty() ? 0 : 3);
  std::map<std::string, std::vector<std::byte>> saved;
  for (const checkpoint::NamedTensor& item : snapshot.source.model) {
    saved[item.spec.name].assign(item.bytes.begin(), item.bytes.end());
  }
  return saved;
}

TEST(EngineDeviceShardsTest, ACheckpointAtStageThreeHoldsTheWholeModel) {
  const auto whole = SavedModel({});
  EXPECT_EQ(whole.size(), 5);
  EXPECT_EQ(SavedModel({"zero_optimization.stage=3"}), whole);
  EXPECT_EQ(
      SavedModel({"zero_optimization.stage=3", "zero_optimization.offload_optimizer.device=cpu",
                  "zero_optimization.offload_param.device=cpu"}),
      whole);
  EXPECT_EQ(
      SavedModel({"zero_optimization.stage=3", "zero_optimization.stage3_max_live_parameters=1"}),
      whole);
}

}  // namespace
}  // namespace dtrain::engine_device_shards_test
