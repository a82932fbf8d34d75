// ZeRO++ on a GPU, over the fakes: weights shared out a second time in small groups (hpZ), weights
// (qwZ) and gradients (qgZ) in int8 blocks. Rounded values have the host's bits: blocks lie alike,
// kernels and sums have one order, and without clipping no number depends on how a norm is added.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "dtrain/engine.h"
#include "runtime/checkpoint/engine_snapshot.h"
#include "runtime/optimizer/engine_state.h"
#include "tests/runtime/testing/device_net.h"
#include "tests/runtime/testing/device_training.h"
#include "tests/runtime/testing/fake_device.h"
#include "tests/runtime/testing/job_for_tests.h"

namespace dtrain::engine_device_zeropp_test {
namespace {

using testing::ExpectSame;
using testing::FakeGpu;
using testing::Net;
using testing::Outcome;
using testing::OutcomeOf;
using testing::RankContext;
using testing::Source;
using testing::Way;

const std::string kZero = "zero_optimization.";
const std::string kWeights = kZero + "zero_quantized_weights=true";
const std::string kGradients = kZero + "zero_quantized_gradients=true";
constexpr int64_t kWidth = 256;  // 30,755 parameters: four buckets on two ranks, two on four.

std::string Partition(int size) { return absl::StrCat(kZero, "zero_hpz_partition_size=", size); }

// On the host; deterministic, so that three ranks add up in their order anywhere.
Way At(int stage, std::vector<std::string> more) {
  Way way{.accumulation = 2, .steps = 4, .width = kWidth, .more = std::move(more)};
  for (const char* const setting : {"deterministic=true", "gradient_clipping=0"}) {
    way.more.emplace_back(setting);
  }
  way.more.push_back(absl::StrCat(kZero, "stage=", stage));
  way.more.push_back(kZero + "stage3_param_persistence_threshold=100");
  return way;
}

Way On(Way::Place place, Way way, const std::vector<std::string>& more = {}) {
  way.place = place;
  way.more.insert(way.more.end(), more.begin(), more.end());
  return way;
}

constexpr Way::Place kPlaces[] = {Way::Place::kNccl, Way::Place::kStaged};

void ExpectHostsBits(const Outcome& device, const Outcome& host) {
  EXPECT_EQ(device.losses, host.losses);
  EXPECT_EQ(device.weights, host.weights);
  EXPECT_EQ(device.skipped, host.skipped);
  ASSERT_EQ(device.norms.size(), host.norms.size());
  for (size_t i = 0; i < host.norms.size(); ++i) {  // Added up in fp64, in another order.
    EXPECT_NEAR(device.norms[i], host.norms[i], 1e-6 * host.norms[i]) << i;
  }
}

TEST(SecondaryShardsOnDeviceTest, GiveTheBitsOfOneShardingWithFewerGathersOverAllRanks) {
  for (const auto& [precision, live] :
       std::vector<std::pair<std::string, std::string>>{{"bf16.enabled=false", "1"},
                                                        {"bf16.enabled=true", "1"},
                                                        {"bf16.enabled=true", "1000000"}}) {
    const Way one =
        On(Way::Place::kNccl, At(3, {precision, kZero + "stage3_max_live_parameters=" + live}));
    const Outcome whole = OutcomeOf(4, one);
    for (const Way::Place place : kPlaces) {
      for (const int size : {2, 4}) {
        SCOPED_TRACE(absl::StrCat(precision, ", live ", live, ", small groups of ", size,
                                  ", place ", static_cast<int>(place)));
        const Outcome second = OutcomeOf(4, On(place, one, {Partition(size)}));
        ExpectSame(second, whole);
        if (place == Way::Place::kNccl && live == "1") {
          EXPECT_LT(second.collectives, whole.collectives) << "later gathers are the small one's";
        }
      }
    }
  }
}

TEST(QuantizedWeightsOnDeviceTest, GiveTheHostsBitsInEveryPrecision) {
  for (const auto& [precision, size] :
       std::vector<std::pair<std::string, int>>{{"bf16.enabled=false", 2},
                                                {"bf16.enabled=false", 3},
                                                {"bf16.enabled=true", 2},
                                                {R"(fp16={"enabled":true,"loss_scale":64})", 2}}) {
    const Way host = At(3, {precision, kWeights});
    const Outcome expected = OutcomeOf(size, host);
    EXPECT_NE(expected.losses, OutcomeOf(size, At(3, {precision})).losses) << "nothing rounded";
    for (const Way::Place place : kPlaces) {
      SCOPED_TRACE(absl::StrCat(precision, ", ", size, " ranks, place ", static_cast<int>(place)));
      ExpectHostsBits(OutcomeOf(size, On(place, host)), expected);
    }
  }
}

TEST(QuantizedWeightsOnDeviceTest, GiveTheSameBitsWhateverIsLiveWhereverTheyAreAndSharedOutTwice) {
  const Way plain = On(Way::Place::kNccl, At(3, {"bf16.enabled=true", kWeights}));
  const Outcome expected = OutcomeOf(4, plain);
  const std::string little = kZero + "stage3_max_live_parameters=1";
  for (const Way::Place place : kPlaces) {
    SCOPED_TRACE(absl::StrCat("place ", static_cast<int>(place)));
    ExpectSame(OutcomeOf(4, On(place, plain, {little})), expected);
    ExpectSame(OutcomeOf(4, On(place, plain, {Partition(2)})), expected);
    ExpectSame(OutcomeOf(4, On(place, plain, {Partition(2), little})), expected);
  }
  // The share comes from the host, through its place in the bucket, when it is packed.
  Way far = On(Way::Place::kNccl, plain,
               {kZero + "offload_optimizer.device=cpu", kZero + "offload_param.device=cpu"});
  far.waits = true;
  for (const char* const more : {"stage3_max_live_parameters=1", "zero_hpz_partition_size=2"}) {
    const Outcome outcome = OutcomeOf(4, On(Way::Place::kNccl, far, {kZero + more}));
    EXPECT_EQ(outcome.losses, expected.losses) << more;
    EXPECT_EQ(outcome.weights, expected.weights) << more;
  }
}

TEST(QuantizedGradientsOnDeviceTest, GiveTheHostsBitsAtBothStages) {
  for (const int stage : {2, 3}) {
    for (const int size : {2, 3}) {
      const Way host = At(stage, {kGradients});
      const Outcome expected = OutcomeOf(size, host);
      EXPECT_NE(expected.weights, OutcomeOf(size, At(stage, {})).weights) << "nothing rounded";
      for (const Way::Place place : kPlaces) {
        SCOPED_TRACE(
            absl::StrCat("stage ", stage, ", ", size, " ranks, place ", static_cast<int>(place)));
        ExpectHostsBits(OutcomeOf(size, On(place, host)), expected);
      }
    }
  }
}

TEST(QuantizedGradientsOnDeviceTest, OfOneRankAreExact) {
  const Way way = On(Way::Place::kNccl, At(2, {}));
  ExpectSame(OutcomeOf(1, On(Way::Place::kNccl, way, {kGradients})), OutcomeOf(1, way));
}

TEST(ZeroPlusPlusOnDeviceTest, AllThreeTogetherGiveTheHostsBitsAndSkipABadStepAsTheHostDoes) {
  for (const int bad_step : {-1, 2}) {
    Way host = At(3, {"bf16.enabled=true", kWeights, kGradients, Partition(2)});
    host.bad_step = bad_step;
    const Outcome expected = OutcomeOf(4, host);
    for (const Way::Place place : kPlaces) {
      SCOPED_TRACE(absl::StrCat("bad step ", bad_step, ", place ", static_cast<int>(place)));
      const Outcome outcome = OutcomeOf(4, On(place, host));
      EXPECT_EQ(outcome.losses, expected.losses);
      EXPECT_EQ(outcome.weights, expected.weights);
      EXPECT_EQ(outcome.skipped, expected.skipped);
      EXPECT_EQ(outcome.skipped[2], bad_step == 2 ? 1 : 0);
    }
  }
}

// Trains three steps on this rank, then calls `then` with the engine.
absl::Status TrainThen(RankContext& context, const Way& way, FakeGpu& gpu,
                       const std::function<absl::Status(Engine&, Net&, Source&)>& then) {
  at::set_num_threads(1);
  const testing::TempFolder folder;
  DT_ASSIGN_OR_RETURN(auto job, testing::MakeJob(&context, folder.path(), way, &gpu));
  at::manual_seed(7);
  Net net(way.segments, way.width);
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, net));
  Source source{context.rank, context.size, way.accumulation};
  for (int i = 0; i < 3; ++i) {
    DT_RETURN_IF_ERROR(
        engine->Step(source, [&](const at::Tensor& x) { return Loss(net.Loss(x), x.size(0)); })
            .status());
  }
  return then(*engine, net, source);
}

// The part of the model that each of two ranks would save after three steps.
std::vector<std::string> Saved(const Way& way) {
  comm::FakeFabric fabric;
  auto cluster = testing::Cluster::Start({.size = 2}, [&](RankContext& context) {
    FakeGpu gpu(&fabric);
    return TrainThen(context, way, gpu, [&](Engine& engine, Net&, Source&) -> absl::Status {
      EngineSnapshot snapshot;
      DT_RETURN_IF_ERROR(EngineSnapshots(engine.state(), {}, "").AddTo(snapshot));
      std::string text;
      for (const checkpoint::NamedTensor& item : snapshot.source.model) {
        absl::StrAppend(&text, item.spec.name, ": ");
        text.append(reinterpret_cast<const char*>(item.bytes.data()), item.bytes.size());
      }
      return context.store->Set(absl::StrCat("saved/", context.rank), text,
                                Deadline::After(absl::Seconds(10)));
    });
  });
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  std::vector<std::string> saved;
  for (int rank = 0; rank < 2; ++rank) {
    const auto text = (*cluster)->Result(absl::StrCat("saved/", rank));
    EXPECT_TRUE(text.ok()) << text.status();
    saved.push_back(text.value_or(""));
  }
  for (const auto& result : (*cluster)->Join()) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
  return saved;
}

TEST(ZeroPlusPlusOnDeviceTest, ACheckpointHoldsTheWeightsThatTheHostsWouldExactly) {
  const Way host = At(3, {kWeights, kGradients, Partition(2)});
  const std::vector<std::string> expected = Saved(host);
  EXPECT_GT(expected[0].size() + expected[1].size(), sizeof(float) * 30'000);
  for (const Way::Place place : kPlaces) {
    EXPECT_TRUE(Saved(On(place, host)) == expected) << static_cast<int>(place);
  }
}

// Steps until one fails; its error.
absl::Status FirstError(Engine& engine, Net& net, Source& source) {
  absl::Status status;
  for (int i = 0; i < 500 && status.ok(); ++i) {
    status = engine.Step(source, [&](const at::Tensor& x) { return Loss(net.Loss(x), x.size(0)); })
                 .status();
  }
  return status;
}

TEST(SecondaryShardsOnDeviceTest, ASmallGroupThatBreaksEndsTheRunOnAllRanks) {
  comm::FakeFabric fabric;
  const Way way = On(Way::Place::kNccl, At(3, {Partition(2)}));
  const auto results = testing::RunRanks({.size = 4}, [&](RankContext& context) -> absl::Status {
    FakeGpu gpu(&fabric);
    return TrainThen(
        context, way, gpu, [&](Engine& engine, Net& net, Source& source) -> absl::Status {
          if (context.rank == 1) {
            engine.state().live->small_group()->Abort("broken on purpose");
          }
          const absl::Status failed = FirstError(engine, net, source);
          const bool named =
              context.rank != 1 || absl::StrContains(failed.message(), "broken on purpose");
          return !failed.ok() && named
                     ? absl::OkStatus()
                     : absl::InternalError(absl::StrCat("ended with ", failed.message()));
        });
  });
  for (const auto& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

TEST(ZeroPlusPlusOnDeviceTest, ACopyOfTheStagedPathThatFailsEndsTheRunWithItsReason) {
  comm::FakeFabric fabric;
  const Way way = On(Way::Place::kStaged, At(3, {kWeights, kGradients, Partition(2)}));
  const auto results = testing::RunRanks({.size = 2}, [&](RankContext& context) -> absl::Status {
    FakeGpu gpu(&fabric);
    return TrainThen(
        context, way, gpu, [&](Engine& engine, Net& net, Source& source) -> absl::Status {
          if (context.rank == 1) {
            gpu.cuda.FailCopiesAfter(25);
          }
          const absl::Status failed = FirstError(engine, net, source);
          const bool named =
              context.rank != 1 || absl::StrContains(failed.message(), "copy of a staged");
          return !failed.ok() && named
                     ? absl::OkStatus()
                     : absl::InternalError(absl::StrCat("ended with ", failed.message()));
        });
  });
  for (const auto& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

}  // namespace
}  // namespace dtrain::engine_device_zeropp_test
