// The engine on a GPU, over the fakes: the same training as on the host, no wait inside a step, and
// errors that say what happened.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "dtrain/engine.h"
#include "runtime/checkpoint/engine_snapshot.h"
#include "runtime/device/cuda_backend.h"
#include "runtime/job/job_device.h"
#include "runtime/optimizer/engine_state.h"
#include "tests/runtime/testing/device_net.h"
#include "tests/runtime/testing/device_training.h"
#include "tests/runtime/testing/fake_device.h"
#include "tests/runtime/testing/job_for_tests.h"

namespace dtrain::engine_device_test {
namespace {

using testing::ExpectNear;
using testing::ExpectSame;
using testing::FakeGpu;
using ::testing::HasSubstr;
using testing::IsTried;
using testing::MakeJob;
using testing::Net;
using testing::Outcome;
using testing::OutcomeOf;
using testing::Source;
using testing::Way;

TEST(EngineDeviceTest, OneRankGivesTheHostsBits) {
  for (const int accumulation : {1, 3}) {
    const Outcome host = OutcomeOf(1, {.accumulation = accumulation});
    EXPECT_NE(host.losses[0], host.losses[5]);
    for (const Way::Place place : {Way::Place::kNccl, Way::Place::kStaged}) {
      const Outcome device = OutcomeOf(1, {.place = place, .accumulation = accumulation});
      EXPECT_EQ(device.losses, host.losses);
      EXPECT_EQ(device.weights, host.weights);
    }
  }
}

TEST(EngineDeviceTest, RanksTrainAsTheyDoOnTheHostAtEveryStage) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const int size : {2, 3}) {
      const std::string zero = absl::StrCat("zero_optimization.stage=", stage);
      const Outcome host = OutcomeOf(size, {.accumulation = 2, .more = {zero}});
      for (const Way::Place place : {Way::Place::kNccl, Way::Place::kStaged}) {
        if (!IsTried({stage, size, static_cast<int>(place)})) {
          continue;
        }
        SCOPED_TRACE(
            absl::StrCat("stage ", stage, ", ", size, " ranks, place ", static_cast<int>(place)));
        ExpectNear(OutcomeOf(size, {.place = place, .accumulation = 2, .more = {zero}}), host,
                   2e-5);
      }
    }
  }
}

TEST(EngineDeviceTest, DeterministicNormsHaveTheSameBitsAtEveryStageAndBucketSize) {
  const Way way{.place = Way::Place::kNccl, .more = {"deterministic=true"}};
  const Outcome plain = OutcomeOf(2, way);
  for (const char* const other :
       {"zero_optimization.stage=1", "zero_optimization.stage=2", "zero_optimization.stage=3",
        "zero_optimization.reduce_bucket_size=4000"}) {
    Way changed = way;
    changed.more.push_back(other);
    const Outcome outcome = OutcomeOf(2, changed);
    EXPECT_EQ(outcome.norms, plain.norms) << other;
    EXPECT_EQ(outcome.losses, plain.losses) << other;
    EXPECT_EQ(outcome.weights, plain.weights) << other;
  }
}

TEST(EngineDeviceTest, EveryElementwiseOptimizerAndPrecisionGivesTheHostsBits) {
  for (const char* const optimizer :
       {R"(optimizer={"type":"AdamW","params":{"lr":0.01}})",
        R"(optimizer={"type":"Adam","params":{"lr":0.01,"adam_w_mode":false,"weight_decay":0.1}})",
        R"(optimizer={"type":"SGD","params":{"lr":0.01,"momentum":0.9}})",
        R"(optimizer={"type":"SGD","params":{"lr":0.01}})",
        R"(optimizer={"type":"Lion","params":{"lr":0.001}})",
        R"(optimizer={"type":"Adagrad","params":{"lr":0.01}})"}) {
    for (const char* const precision : {"bf16.enabled=false", "bf16.enabled=true"}) {
      const Way host{.more = {optimizer, precision}};
      Way device = host;
      device.place = Way::Place::kNccl;
      const Outcome expected = OutcomeOf(1, host);
      const Outcome outcome = OutcomeOf(1, device);
      EXPECT_EQ(outcome.losses, expected.losses) << optimizer << " " << precision;
      EXPECT_EQ(outcome.weights, expected.weights) << optimizer << " " << precision;
    }
  }
}

TEST(EngineDeviceTest, NoHostWaitsInsideAStepWhateverItClipsScalesOrAccumulates) {
  const std::vector<std::vector<std::string>> cases = {
      {"gradient_clipping=0"},
      {"gradient_clipping=0.01"},  // Every step is clipped.
      {"gradient_predivide_factor=2"},
      {"bf16.enabled=true"},
      {"fp16.enabled=true", "fp16.loss_scale=64"},
      {"fp16.enabled=true", "fp16.initial_scale_power=4", "fp16.loss_scale_window=2"},
  };
  for (const auto& more : cases) {
    for (const bool accumulates : {false, true}) {
      for (const bool graphs : {false, true}) {
        if (!IsTried({static_cast<int>(&more - cases.data()), accumulates, graphs})) {
          continue;
        }
        Way way{.place = Way::Place::kNccl, .accumulation = accumulates ? 4 : 1, .more = more};
        way.more.emplace_back(graphs ? "cuda_graphs=true" : "cuda_graphs=false");
        SCOPED_TRACE(
            absl::StrCat(more[0], ", ", way.accumulation, " micro-batches, ", way.more.back()));
        const Outcome outcome = OutcomeOf(2, way);
        EXPECT_EQ(outcome.waits, 0);
        EXPECT_EQ(outcome.skipped, std::vector<double>(6, 0)) << "a skipped step is looked into";
      }
    }
  }
  const Way reads{.place = Way::Place::kNccl, .accumulation = 2, .reads = true};
  EXPECT_EQ(OutcomeOf(1, reads).waits, 4 * 2 * 2) << "item and what it is made of, counted";
}

TEST(EngineDeviceTest, RanksThatLaunchGraphsHaveTheBitsOfEagerSteps) {
  for (const char* const stage : {"zero_optimization.stage=0", "zero_optimization.stage=1"}) {
    for (const Way::Place place : {Way::Place::kNccl, Way::Place::kStaged}) {
      for (const int accumulation : {1, 3}) {
        SCOPED_TRACE(absl::StrCat(stage, ", place ", static_cast<int>(place)));
        Way way{.place = place, .accumulation = accumulation, .more = {stage}};
        const Outcome eager = OutcomeOf(2, way);
        way.more.emplace_back("cuda_graphs=true");
        const Outcome graphs = OutcomeOf(2, way);
        ExpectSame(graphs, eager);
      }
    }
  }
}

TEST(EngineDeviceTest, ABackwardBetweenStepsIsTheProgramsAndCountsWhereAsked) {
  for (const char* const stage : {"zero_optimization.stage=0", "zero_optimization.stage=1",
                                  "zero_optimization.stage=2", "zero_optimization.stage=3"}) {
    const Way on_host{
        .accumulation = 2, .own = Way::Own::kLeft, .zero_grad = false, .more = {stage}};
    const Outcome host = OutcomeOf(2, on_host);
    for (const char* const graphs : {"cuda_graphs=false", "cuda_graphs=true"}) {
      SCOPED_TRACE(absl::StrCat(stage, ", ", graphs));
      Way way{.place = Way::Place::kNccl, .accumulation = 2, .more = {stage, graphs}};
      const Outcome plain = OutcomeOf(2, way);
      way.own = Way::Own::kCleared;
      ExpectSame(OutcomeOf(2, way), plain);
      way.own = Way::Own::kLeft;
      ExpectSame(OutcomeOf(2, way), plain);
      way.zero_grad = false;
      const Outcome left = OutcomeOf(2, way);
      EXPECT_NE(left.weights, plain.weights);
      ExpectNear(left, host, 1e-5);
    }
  }
}

TEST(EngineDeviceTest, WhatNoRankUsesIsSkippedAsOnTheHost) {
  const char* const skip = "optimizer.skip_unused_parameters=true";
  const std::string offload = "zero_optimization.offload_optimizer.device=";
  // The three in the middle are one template of one state: each has every second way, so that
  // any way has one of them or two. The others have rules of their own, and each has all.
  const std::vector<std::string> optimizers = {
      R"({"params":{"lr":0.01,"weight_decay":0.1}})",
      R"({"type":"SGD","params":{"lr":0.01,"momentum":0.9,"weight_decay":0.1}})",
      R"({"type":"Lion","params":{"lr":0.001,"weight_decay":0.1}})",
      R"({"type":"Adagrad","params":{"weight_decay":0.1}})",
      R"({"type":"Lamb","params":{"lr":0.01,"weight_decay":0.1}})",
      R"({"type":"Muon","params":{"weight_decay":0.1}})"};
  for (int i = 0; i < std::ssize(optimizers); ++i) {
    const std::string& optimizer = optimizers[static_cast<size_t>(i)];
    const Way on_host{.pauses = true, .more = {"optimizer=" + optimizer}};
    const Outcome host = OutcomeOf(2, With(on_host, {skip}));
    EXPECT_NE(host.weights, OutcomeOf(2, on_host).weights);
    const std::vector<std::vector<std::string>> ways = {
        {"zero_optimization.stage=0"}, {"zero_optimization.stage=0", "cuda_graphs=true"},
        {"zero_optimization.stage=1"}, {"zero_optimization.stage=2"},
        {"zero_optimization.stage=3"}, {"zero_optimization.stage=2", offload + "cpu"}};
    for (const auto& more : ways) {
      const bool of_one_state = i >= 1 && i <= 3;
      if (of_one_state && !IsTried({i, static_cast<int>(&more - ways.data())})) {
        continue;
      }
      SCOPED_TRACE(absl::StrCat(optimizer, ", ", more.front(), ", ", more.back()));
      Way way = With(With(on_host, {skip}), more);
      way.place = Way::Place::kNccl;
      way.waits = more.back() == offload + "cpu";
      if (more.back() == "cuda_graphs=true") {  // A launched graph runs no closure.
        way.pauses = false;
        Way eager = way;
        eager.more.pop_back();
        ExpectSame(OutcomeOf(2, way), OutcomeOf(2, eager));
      } else {
        ExpectNear(OutcomeOf(2, way), host, 2e-5);
      }
    }
  }
}

TEST(EngineDeviceTest, StatesInBf16GiveTheHostsBitsToNearestAndByChance) {
  const Way nearest{.more = {"bf16.enabled=true", "bf16.bf16_optimizer_states=true"}};
  Way by_chance = nearest;
  by_chance.more.push_back("bf16.stochastic_rounding=true");
  Outcome last;
  for (const Way& host : {nearest, by_chance}) {
    const Outcome expected = OutcomeOf(2, host);
    for (const char* const stage : {"zero_optimization.stage=0", "zero_optimization.stage=2"}) {
      Way device = host;
      device.place = Way::Place::kNccl;
      device.more.emplace_back(stage);
      const Outcome outcome = OutcomeOf(2, device);
      EXPECT_EQ(outcome.weights, expected.weights) << stage;
      EXPECT_EQ(outcome.weights == last.weights, stage == std::string("zero_optimization.stage=2"));
      last = outcome;
    }
  }
}

TEST(EngineDeviceTest, ANonFiniteStepIsSkippedOnTheDeviceAsOnTheHost) {
  for (const char* const precision : {"bf16.enabled=true", "fp16.enabled=true"}) {
    for (const int size : {1, 2}) {
      const Way host{.bad_step = 2, .more = {precision}};
      const Outcome expected = OutcomeOf(size, host);
      Way device = host;
      device.place = Way::Place::kNccl;
      const Outcome outcome = OutcomeOf(size, device);
      EXPECT_EQ(outcome.skipped, expected.skipped) << precision;
      EXPECT_EQ(outcome.skipped[2], 1) << precision;
      for (size_t i = 0; i < expected.weights.size(); ++i) {
        ASSERT_NEAR(outcome.weights[i], expected.weights[i], 1e-2) << precision;  // bf16's 8 bits.
      }
      EXPECT_EQ(outcome.buffers.size(), 30);
      if (size == 1) {
        EXPECT_EQ(outcome.buffers, expected.buffers) << precision;
      }
      for (const double value : outcome.buffers) {
        EXPECT_TRUE(std::isfinite(value)) << "a bad batch must not stay in running statistics";
      }
    }
  }
}

TEST(EngineDeviceTest, AStepOfNoSampleIsSkippedOnTheDeviceAsOnTheHost) {
  for (const char* const more : {"zero_optimization.stage=0", "zero_optimization.stage=1",
                                 "zero_optimization.stage=3", "fp16.enabled=true"}) {
    const Way host{.empty_step = 3, .more = {more}};
    const Outcome expected = OutcomeOf(2, host);
    Way device = host;
    device.place = Way::Place::kNccl;
    const Outcome outcome = OutcomeOf(2, device);
    EXPECT_EQ(outcome.skipped, expected.skipped) << more;
    EXPECT_EQ(outcome.skipped[3], 1) << more;
    EXPECT_EQ(outcome.losses[3], -1) << more << ": NaN";
    for (size_t i = 0; i < expected.weights.size(); ++i) {
      ASSERT_NEAR(outcome.weights[i], expected.weights[i], 1e-2) << more;  // fp16's 11 bits.
    }
  }
}

TEST(EngineDeviceTest, TheRateThatIsToldIsThatOfTheStepThoughTheOneBeforeWasSkipped) {
  // The rate rises linearly from 0.001 to 0.005 in four steps. DeepSpeed begins after the first
  // step, and a step that is skipped does not move the schedule.
  const std::vector<double> rates = {0.001, 0.001, 0.002, 0.002, 0.003, 0.004};
  for (const char* const stage : {"zero_optimization.stage=0", "zero_optimization.stage=3"}) {
    for (const Way::Place place : {Way::Place::kHost, Way::Place::kNccl}) {
      Way way{.place = place, .bad_step = 2, .more = {stage, "bf16.enabled=true"}};
      way.more.emplace_back(R"(scheduler={"type":"WarmupLR","params":{"warmup_min_lr":0.001,)"
                            R"("warmup_max_lr":0.005,"warmup_num_steps":4,)"
                            R"("warmup_type":"linear"}})");
      const Outcome outcome = OutcomeOf(2, way);
      EXPECT_THAT(outcome.rates, ::testing::Pointwise(::testing::DoubleEq(), rates)) << stage;
      EXPECT_EQ(outcome.skipped, std::vector<double>({0, 0, 1, 0, 0, 0})) << stage;
    }
  }
}

// OutcomeOf compares the ranks with each other; kStaged goes through the hosts' memory.
TEST(EngineDeviceTest, ModuleBuffersBecomeOneSetAsOnTheHost) {
  for (const bool averages : {false, true}) {
    for (const int stage : {0, 3}) {
      for (const int accumulation : {1, 2}) {
        const char* const policy = averages ? "module_buffers=average" : "module_buffers=broadcast";
        const Way host{.accumulation = accumulation,
                       .more = {policy, absl::StrCat("zero_optimization.stage=", stage)}};
        const Outcome expected = OutcomeOf(2, host);
        for (const Way::Place place : {Way::Place::kNccl, Way::Place::kStaged}) {
          if (!IsTried({averages, stage, accumulation, static_cast<int>(place)})) {
            continue;
          }
          Way device = host;
          device.place = place;
          const Outcome outcome = OutcomeOf(2, device);
          ASSERT_EQ(outcome.buffers.size(), expected.buffers.size());
          for (size_t i = 0; i < expected.buffers.size(); ++i) {
            EXPECT_NEAR(outcome.buffers[i], expected.buffers[i], 1e-5) << policy << " " << stage;
          }
        }
      }
    }
  }
  EXPECT_NE(OutcomeOf(2, {.more = {"module_buffers=average"}}).buffers, OutcomeOf(2, {}).buffers);
}

TEST(EngineDeviceTest, AStepReturnsBeforeItsNumbersAreRead) {
  comm::FakeFabric fabric;
  FakeGpu gpu(&fabric);
  const testing::TempFolder folder;
  auto job = MakeJob(nullptr, folder.path(), {.place = Way::Place::kNccl}, &gpu);
  ASSERT_TRUE(job.ok()) << job.status();
  Net net;
  auto engine = Engine::Create(**job, net);
  ASSERT_TRUE(engine.ok()) << engine.status();
  Source source{0, 1, 1};
  const auto loss = [&](const at::Tensor& x) { return Loss(net.Loss(x), x.size(0)); };
  const auto first = (*engine)->Step(source, loss);
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_NE(first->late, nullptr);
  (*job)->metrics().Log(*first);
  const auto second = (*engine)->Step(source, loss);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_TRUE(first->settled()) << "the next update has read them";
  engine->reset();
  const double value = second->loss;  // Outlives its engine.
  EXPECT_TRUE(std::isfinite(value));
  EXPECT_GT(second->Settled().seconds, 0);
}

TEST(EngineDeviceTest, AFailedStepLeavesNoTraceAndTrainingGoesOn) {
  comm::FakeFabric fabric;
  FakeGpu gpu(&fabric);
  const testing::TempFolder folder;
  auto job = MakeJob(nullptr, folder.path(), {.place = Way::Place::kNccl}, &gpu);
  ASSERT_TRUE(job.ok()) << job.status();
  Net net;
  auto engine = Engine::Create(**job, net);
  ASSERT_TRUE(engine.ok()) << engine.status();
  Source source{0, 1, 1};
  const auto loss = [&](const at::Tensor& x) { return Loss(net.Loss(x), x.size(0)); };
  for (int i = 0; i < 4; ++i) {
    const auto good = (*engine)->Step(source, loss);
    ASSERT_TRUE(good.ok()) << good.status();
    const at::Tensor a = net.a.detach().clone();
    const at::Tensor mean = net.mean.clone();
    for (int again = 0; again < 2; ++again) {
      const auto bad = (*engine)->Step(source, [&](const at::Tensor& x) -> Loss {
        loss(x).sum.sum();
        throw std::runtime_error("on purpose");
      });
      EXPECT_THAT(bad.status().message(), HasSubstr("on purpose"));
    }
    EXPECT_TRUE(at::equal(net.a, a));
    EXPECT_TRUE(at::equal(net.mean, mean));
    EXPECT_TRUE(std::isfinite(static_cast<double>(good->loss))) << "read after the failed steps";
  }
  EXPECT_EQ((*engine)->state().progress.updates, 4);
}

TEST(EngineDeviceTest, ACheckpointHoldsTheStateAfterTheLastStep) {
  comm::FakeFabric fabric;
  FakeGpu gpu(&fabric);
  const testing::TempFolder folder;
  auto job =
      MakeJob(nullptr, folder.path(),
              {.place = Way::Place::kNccl,
               .more = {"fp16.enabled=true", "fp16.initial_scale_power=8", "fp16.hysteresis=1"}},
              &gpu);
  ASSERT_TRUE(job.ok()) << job.status();
  Net net;
  auto engine = Engine::Create(**job, net);
  ASSERT_TRUE(engine.ok()) << engine.status();
  Source source{0, 1, 1};
  for (const bool bad : {false, false, true}) {
    ASSERT_TRUE((*engine)
                    ->Step(source,
                           [&](const at::Tensor& x) {
                             return Loss(net.Loss(x) * (bad ? INFINITY : 1.0), x.size(0));
                           })
                    .ok());
  }
  EngineSnapshot snapshot;
  const absl::Status taken = EngineSnapshots((*engine)->state(), {}, "").AddTo(snapshot);
  ASSERT_TRUE(taken.ok()) << taken;
  ASSERT_TRUE(snapshot.source.ModelTensors().ok());  // Completes the records.
  const Json& record = snapshot.source.job.engine;
  EXPECT_EQ(record["step"], 3);
  EXPECT_EQ(record["updates"], 2);
  EXPECT_EQ(record["skipped"], 1);
  EXPECT_EQ(record["loss_scale"]["scale"], 128);
  EXPECT_EQ(record["loss_scale"]["last_overflow"], 2);
}

TEST(EngineDeviceTest, AMachineWithoutADriverTrainsOnTheCpuAndRefusesCuda) {
  if (FindGpus(0).driver) {
    GTEST_SKIP() << "there is a driver here";
  }
  const testing::TempFolder folder;
  for (const char* const wish : {"device=auto", "device=cpu"}) {
    auto job = MakeJob(nullptr, folder.path(), {.more = {wish}}, nullptr);
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_TRUE(OpenDevice((*job)->state(), {}).ok()) << wish;
    EXPECT_TRUE((*job)->device().is_cpu()) << wish;
    EXPECT_EQ((*job)->state().device_group, nullptr) << wish;
  }
  auto job = MakeJob(nullptr, folder.path(), {.more = {"device=cuda"}}, nullptr);
  ASSERT_TRUE(job.ok()) << job.status();
  const absl::Status refused = OpenDevice((*job)->state(), {});
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("no NVIDIA driver is loaded"));
}

TEST(EngineDeviceTest, WhatAGpuCannotDoYetIsRefusedByName) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"activation_checkpointing.nvme_path=/tmp", "activation_checkpointing.nvme_path"},
  };
  for (const auto& [setting, named] : cases) {
    comm::FakeFabric fabric;
    FakeGpu gpu(&fabric);
    const testing::TempFolder folder;
    auto job =
        MakeJob(nullptr, folder.path(), {.place = Way::Place::kNccl, .more = {setting}}, &gpu);
    ASSERT_TRUE(job.ok()) << job.status();
    Net net;
    const auto engine = Engine::Create(**job, net);
    EXPECT_EQ(engine.status().code(), absl::StatusCode::kUnimplemented) << setting;
    EXPECT_THAT(engine.status().message(), HasSubstr(named));
    EXPECT_THAT(engine.status().message(), HasSubstr("device to \"cpu\""));
  }
}

TEST(EngineDeviceTest, StatesThatDoNotFitTheGpuAreRefusedBeforeTheyAreMade) {
  comm::FakeFabric fabric;
  FakeGpu gpu(&fabric);
  const testing::TempFolder folder;
  auto job = MakeJob(nullptr, folder.path(), {.place = Way::Place::kNccl}, &gpu);
  ASSERT_TRUE(job.ok()) << job.status();
  gpu.cuda.SetFreeMemory(100'000);  // 7,715 parameters of 16 bytes.
  Net net;
  const auto engine = Engine::Create(**job, net);
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(engine.status().message(), HasSubstr("but a rank has 0.0001 GB"));
}

TEST(EngineDeviceTest, FrozenParametersCountToWhatMustFit) {
  for (const int64_t frozen_elements : {4'000, 40'000}) {
    comm::FakeFabric fabric;
    FakeGpu gpu(&fabric);
    const testing::TempFolder folder;
    auto job = MakeJob(nullptr, folder.path(), {.place = Way::Place::kNccl}, &gpu);
    ASSERT_TRUE(job.ok()) << job.status();
    gpu.cuda.SetFreeMemory(200'000);  // 7,715 parameters of 16 bytes fit, and 4,000 of 4.
    Net net;
    net.register_parameter("frozen", at::zeros({frozen_elements}), /*requires_grad=*/false);
    const auto engine = Engine::Create(**job, net);
    EXPECT_EQ(engine.ok(), frozen_elements == 4'000) << engine.status();
    if (!engine.ok()) {
      EXPECT_THAT(engine.status().message(), HasSubstr("frozen parameters of 0.00016 GB"));
    }
  }
}

TEST(EngineDeviceTest, ABrokenDeviceGroupEndsTheRunWithItsReason) {
  comm::FakeFabric fabric;
  FakeGpu gpu(&fabric, {.async_error_after = 12});
  const testing::TempFolder folder;
  auto job = MakeJob(nullptr, folder.path(), {.place = Way::Place::kNccl}, &gpu);
  ASSERT_TRUE(job.ok()) << job.status();
  Net net;
  auto engine = Engine::Create(**job, net);
  ASSERT_TRUE(engine.ok()) << engine.status();
  Source source{0, 1, 1};
  absl::Status status;
  for (int i = 0; i < 2000 && status.ok(); ++i) {
    status = (*engine)
                 ->Step(source, [&](const at::Tensor& x) { return Loss(net.Loss(x), x.size(0)); })
                 .status();
  }
  EXPECT_THAT(status.message(), HasSubstr("NCCL group device")) << status;
}

}  // namespace
}  // namespace dtrain::engine_device_test
