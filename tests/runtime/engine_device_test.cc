// The engine on a GPU, over the fakes: the same training as on the host, no wait inside a step, and
// errors that say what happened.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "dtrain/engine.h"
#include "runtime/checkpoint/engine_snapshot.h"
#include "runtime/device/cuda_backend.h"
#include "runtime/engine/engine_state.h"
#include "runtime/job/job_device.h"
#include "tests/runtime/device_net.h"
#include "tests/runtime/fake_device.h"
#include "tests/runtime/job_for_tests.h"
#include "tests/runtime/operation_count.h"

namespace dtrain {
namespace {

using testing::FakeGpu;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Net;
using testing::RankContext;
using testing::Source;
using testing::WaitingOperations;

struct Way {
  enum class Place { kHost, kNccl, kStaged };
  Place place = Place::kHost;
  int accumulation = 1;
  int steps = 6;
  int bad_step = -1;   // From 0: its loss is infinite on rank 0.
  bool reads = false;  // The closure reads its loss: it waits.
  std::vector<std::string> more = {};
};

struct Outcome {
  std::vector<double> losses, norms, skipped, weights, buffers;
  int waits = 0;  // Of the host for the device, inside steps after the second.
};

std::vector<std::string> Overrides(const Way& way) {
  std::vector<std::string> overrides = {
      "train_micro_batch_size_per_gpu=1",
      absl::StrCat("gradient_accumulation_steps=", way.accumulation),
      "zero_optimization.reduce_bucket_size=2500", "gradient_clipping=0.05",
      R"(optimizer={"type":"AdamW","params":{"lr":0.01,"weight_decay":0.1}})"};
  overrides.insert(overrides.end(), way.more.begin(), way.more.end());
  return overrides;
}

// A job whose device is the fake, or the host.
absl::StatusOr<std::unique_ptr<Job>> MakeJob(RankContext* context, const std::string& folder,
                                             const Way& way, FakeGpu* gpu) {
  DT_ASSIGN_OR_RETURN(
      auto job,
      testing::MakeTestJob({.run_dir = folder, .overrides = Overrides(way), .rank = context}));
  if (way.place != Way::Place::kHost) {
    DT_RETURN_IF_ERROR(
        gpu->Attach(job->state(), way.place == Way::Place::kStaged,
                    context != nullptr ? context->group_options() : comm::GroupOptions{}));
  }
  return job;
}

absl::Status Train(RankContext& context, const Way& way, FakeGpu* gpu, Outcome& outcome) {
  at::set_num_threads(1);
  const testing::TempFolder folder;
  DT_ASSIGN_OR_RETURN(auto job, MakeJob(&context, folder.path(), way, gpu));
  at::manual_seed(static_cast<uint64_t>(7 + context.rank));  // Weights must come from rank 0.
  Net net;
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, net));
  Source source{context.rank, context.size, way.accumulation};
  std::vector<StepReport> reports;
  for (int i = 0; i < way.steps; ++i) {
    const int before = gpu->cuda.synchronizations();
    const WaitingOperations operations;
    DT_ASSIGN_OR_RETURN(reports.emplace_back(), engine->Step(source, [&](const at::Tensor& x) {
      const at::Tensor loss = net.Loss(x);
      if (way.reads) {
        loss.item<float>();
      }
      return Loss(i == way.bad_step && context.rank == 0 ? loss * INFINITY : loss, x.size(0));
    }));
    if (i > 1) {  // At the end of the second the GEMM rate is measured.
      outcome.waits += WaitingOperations::Count() + gpu->cuda.synchronizations() - before;
    }
  }
  // A skipped step is looked into, and staged groups wait in a thread of their own.
  if (way.place == Way::Place::kNccl && way.bad_step < 0 && !way.reads && outcome.waits > 0) {
    return absl::InternalError(absl::StrCat(outcome.waits, " waits of the host inside steps"));
  }
  for (const StepReport& report : reports) {
    const double loss = report.loss;
    const double norm = report.grad_norm;
    outcome.losses.push_back(std::isfinite(loss) ? loss : -1);  // JSON knows no infinity.
    outcome.norms.push_back(std::isfinite(norm) ? norm : -1);
    outcome.skipped.push_back(report.skipped ? 1 : 0);
  }
  DT_RETURN_IF_ERROR(engine->WithParameters([&] {
    for (const at::Tensor& tensor : {net.a, net.b, net.c, net.unused}) {
      const at::Tensor flat = tensor.detach().to(at::kFloat).contiguous().view({-1});
      outcome.weights.insert(outcome.weights.end(), flat.const_data_ptr<float>(),
                             flat.const_data_ptr<float>() + flat.numel());
    }
  }));
  const at::Tensor buffer = net.mean.to(at::kFloat).contiguous();
  outcome.buffers.assign(buffer.const_data_ptr<float>(),
                         buffer.const_data_ptr<float>() + buffer.numel());
  if (const int64_t done = engine->state().updates + engine->state().skipped; done != way.steps) {
    return absl::InternalError(absl::StrCat(done, " steps are accounted for"));
  }
  engine.reset();
  job.reset();
  const auto wrong = gpu->cuda.violations();
  const auto wrong_nccl = gpu->nccl.violations();
  return wrong.empty() && wrong_nccl.empty()
             ? absl::OkStatus()
             : absl::InternalError(wrong.empty() ? wrong_nccl.front() : wrong.front());
}

// Trains on `size` processes; what rank 0 saw, after checking that all saw the same.
Outcome OutcomeOf(int size, const Way& way) {
  comm::FakeFabric fabric;
  auto cluster = testing::Cluster::Start({.size = size}, [&](RankContext& context) -> absl::Status {
    FakeGpu gpu(&fabric);
    Outcome outcome;
    DT_RETURN_IF_ERROR(Train(context, way, &gpu, outcome));
    const Json json = {outcome.losses,  outcome.norms,   outcome.skipped,
                       outcome.weights, outcome.buffers, outcome.waits};
    return context.store->Set("outcome/" + std::to_string(context.rank), DumpJson(json),
                              Deadline::After(absl::Seconds(10)));
  });
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  std::vector<Outcome> all;
  for (int rank = 0; rank < size; ++rank) {
    const auto text = (*cluster)->store().Get("outcome/" + std::to_string(rank),
                                              Deadline::After(absl::Seconds(60)));
    EXPECT_TRUE(text.ok()) << text.status();
    const Json json = *ParseJson(text.value_or("[[],[],[],[],[],0]"), "outcome");
    Outcome& outcome = all.emplace_back();
    outcome.losses = json[0].get<std::vector<double>>();
    outcome.norms = json[1].get<std::vector<double>>();
    outcome.skipped = json[2].get<std::vector<double>>();
    outcome.weights = json[3].get<std::vector<double>>();
    outcome.buffers = json[4].get<std::vector<double>>();
    outcome.waits = json[5].get<int>();
    EXPECT_EQ(outcome.losses, all.front().losses) << "rank " << rank;
    EXPECT_EQ(outcome.norms, all.front().norms) << "rank " << rank;
    EXPECT_EQ(outcome.weights, all.front().weights) << "rank " << rank;
  }
  for (const auto& result : (*cluster)->Join()) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
  return all.front();
}

// The norm's sum may be cut elsewhere than on the host, and with it the clip factor's last bits.
void ExpectNear(const Outcome& device, const Outcome& host, double tolerance) {
  ASSERT_EQ(device.losses.size(), host.losses.size());
  for (size_t i = 0; i < host.losses.size(); ++i) {
    EXPECT_NEAR(device.losses[i], host.losses[i], tolerance * std::abs(host.losses[i])) << i;
    EXPECT_NEAR(device.norms[i], host.norms[i], tolerance * std::abs(host.norms[i])) << i;
  }
  ASSERT_EQ(device.weights.size(), host.weights.size());
  for (size_t i = 0; i < host.weights.size(); ++i) {
    ASSERT_NEAR(device.weights[i], host.weights[i], tolerance) << i;
  }
}

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
        SCOPED_TRACE(
            absl::StrCat("stage ", stage, ", ", size, " ranks, place ", static_cast<int>(place)));
        ExpectNear(OutcomeOf(size, {.place = place, .accumulation = 2, .more = {zero}}), host,
                   2e-5);
      }
    }
  }
}

TEST(EngineDeviceTest, SixteenBitsOnTheWireGiveWhatTheyGiveOnTheHost) {
  const Outcome whole = OutcomeOf(2, {.place = Way::Place::kNccl, .more = {"deterministic=true"}});
  for (const char* const wire : {"comm.wire_dtype=bf16", "comm.wire_dtype=fp16"}) {
    for (const int stage : {0, 1, 2, 3}) {
      const std::string zero = absl::StrCat("zero_optimization.stage=", stage);
      const Outcome host = OutcomeOf(2, {.more = {zero, wire}});
      for (const Way::Place place : {Way::Place::kNccl, Way::Place::kStaged}) {
        SCOPED_TRACE(absl::StrCat(wire, ", stage ", stage, ", place ", static_cast<int>(place)));
        const Outcome device = OutcomeOf(2, {.place = place, .more = {zero, wire}});
        ExpectNear(device, host, 2e-4);
        EXPECT_NE(device.norms, whole.norms) << "gradients were rounded on their way";
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

// Values are read where they are gathered, so bits are those of values that are always there.
TEST(EngineDeviceTest, StageThreeGivesTheBitsOfStageTwoWhateverMayBeLive) {
  for (const char* const precision : {"bf16.enabled=false", "bf16.enabled=true"}) {
    for (const Way::Place place : {Way::Place::kNccl, Way::Place::kStaged}) {
      for (const int accumulation : {1, 3}) {
        Way way{.place = place, .accumulation = accumulation, .more = {precision}};
        way.more.emplace_back("zero_optimization.stage=2");
        const Outcome whole = OutcomeOf(2, way);
        way.more.back() = "zero_optimization.stage=3";
        way.more.emplace_back();
        way.more.emplace_back();
        for (const char* const live : {"1", "6000", "1000000"}) {
          for (const char* const persistent : {"0", "100"}) {
            SCOPED_TRACE(absl::StrCat(precision, ", place ", static_cast<int>(place), ", live ",
                                      live, ", persistent ", persistent));
            way.more[2] = absl::StrCat("zero_optimization.stage3_max_live_parameters=", live);
            way.more[3] =
                absl::StrCat("zero_optimization.stage3_param_persistence_threshold=", persistent);
            const Outcome shared_out = OutcomeOf(2, way);
            EXPECT_EQ(shared_out.losses, whole.losses);
            EXPECT_EQ(shared_out.norms, whole.norms);
            EXPECT_EQ(shared_out.weights, whole.weights);
            EXPECT_EQ(shared_out.buffers, whole.buffers);
          }
        }
      }
    }
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

// Parameters are cut by ranks and buckets; what looks at whole ones finds them whole.
TEST(EngineDeviceTest, OptimizersOfWholeParametersTrainAsOnTheHost) {
  for (const char* const optimizer :
       {R"(optimizer={"type":"Lamb","params":{"lr":0.01,"weight_decay":0.1}})",
        R"(optimizer={"type":"Muon","params":{"lr":0.01,"weight_decay":0.1}})"}) {
    for (const char* const precision : {"bf16.enabled=false", "fp16.enabled=true"}) {
      for (const int stage : {0, 1, 2, 3}) {
        const std::string zero = absl::StrCat("zero_optimization.stage=", stage);
        for (const int size : {1, 3}) {
          const Outcome host = OutcomeOf(size, {.more = {optimizer, precision, zero}});
          EXPECT_NE(host.losses[0], host.losses[5]);
          for (const Way::Place place : {Way::Place::kNccl, Way::Place::kStaged}) {
            SCOPED_TRACE(absl::StrCat(optimizer, ", ", precision, ", ", size, " ranks, stage ",
                                      stage, ", place ", static_cast<int>(place)));
            const Outcome device =
                OutcomeOf(size, {.place = place, .more = {optimizer, precision, zero}});
            EXPECT_EQ(device.waits, 0) << "inside steps";
            ExpectNear(device, host, precision == std::string("fp16.enabled=true") ? 5e-3 : 5e-5);
          }
        }
      }
    }
  }
}

TEST(EngineDeviceTest, ANonFiniteStepLeavesOptimizersOfWholeParametersAsTheyWere) {
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
    for (const int accumulation : {1, 4}) {
      for (const char* const graphs : {"cuda_graphs=false", "cuda_graphs=true"}) {
        SCOPED_TRACE(absl::StrCat(more[0], ", ", accumulation, " micro-batches, ", graphs));
        Way way{.place = Way::Place::kNccl, .accumulation = accumulation, .more = more};
        way.more.emplace_back(graphs);
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
        EXPECT_EQ(graphs.losses, eager.losses);
        EXPECT_EQ(graphs.norms, eager.norms);
        EXPECT_EQ(graphs.weights, eager.weights);
        EXPECT_EQ(graphs.buffers, eager.buffers);
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
    for (const char* const stage : {"zero_optimization.stage=0", "zero_optimization.stage=2"}) {
      Way device = host;
      device.place = Way::Place::kNccl;
      device.more.emplace_back(stage);
      const Outcome expected = OutcomeOf(2, host);
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
  EXPECT_EQ((*engine)->state().updates, 4);
}

TEST(EngineDeviceTest, ACheckpointHoldsTheStateAfterTheLastStep) {
  comm::FakeFabric fabric;
  FakeGpu gpu(&fabric);
  const testing::TempFolder folder;
  auto job = MakeJob(nullptr, folder.path(), {.place = Way::Place::kNccl}, &gpu);
  ASSERT_TRUE(job.ok()) << job.status();
  Net net;
  auto engine = Engine::Create(**job, net);
  ASSERT_TRUE(engine.ok()) << engine.status();
  Source source{0, 1, 1};
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(
        (*engine)
            ->Step(source, [&](const at::Tensor& x) { return Loss(net.Loss(x), x.size(0)); })
            .ok());
  }
  const auto snapshot = TakeSnapshot((*engine)->state(), {}, "");
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  EXPECT_EQ(snapshot->source.job.engine["updates"], 3);
  EXPECT_EQ(snapshot->source.job.engine["step"], 3);
}

// What TakeSnapshot copied of each tensor of the model, on the host, by name.
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
  const auto snapshot = TakeSnapshot((*engine)->state(), {}, "");
  EXPECT_TRUE(snapshot.ok()) << snapshot.status();
  (*engine)
      ->Step(source, [&](const at::Tensor& x) { return Loss(net.Loss(x), x.size(0)); })
      .IgnoreError();  // What was saved stays as it was.
  std::map<std::string, std::vector<std::byte>> saved;
  for (const auto& [spec, bytes] : snapshot->source.model) {
    saved[spec.name].assign(bytes.begin(), bytes.end());
  }
  return saved;
}

TEST(EngineDeviceTest, ACheckpointAtStageThreeHoldsTheWholeModel) {
  const auto whole = SavedModel({});
  EXPECT_EQ(whole.size(), 5);
  EXPECT_EQ(SavedModel({"zero_optimization.stage=3"}), whole);
  EXPECT_EQ(
      SavedModel({"zero_optimization.stage=3", "zero_optimization.stage3_max_live_parameters=1"}),
      whole);
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
      {"zero_optimization={\"stage\":3,\"zero_quantized_weights\":true}", "zero_quantized_weights"},
      {"comm.compression.type=int8", "comm.compression.type"},
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
}  // namespace dtrain
