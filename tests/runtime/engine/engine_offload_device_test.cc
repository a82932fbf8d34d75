// offload_optimizer on a GPU, over the fakes: the host's rule updates the device's weights through
// pinned buffers, to the bits of states beside the weights; checkpoints move between all places of
// states; a copy that fails ends the run with its reason. Copies run on streams that are threads
// and start late, so that what does not wait for one is wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "dtrain/checkpointer.h"
#include "dtrain/engine.h"
#include "runtime/optimizer/engine_state.h"
#include "runtime/optimizer/update_exchange.h"
#include "runtime/plan/stable_hash.h"
#include "tests/runtime/testing/fake_device.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "tests/runtime/testing/optimizer_net.h"
#include "tests/runtime/testing/save_or_resume.h"

namespace dtrain::engine_offload_device_test {
namespace {

using testing::FakeGpu;
using testing::Halves;
using Net = testing::OptimizerNet;  // More chunks than pinned buffers: the ring is used again.
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::RankContext;

const char* const kCpu = "zero_optimization.offload_optimizer.device=cpu";
const char* const kNvme = "zero_optimization.offload_optimizer.device=nvme";
const char* const kFolder = "zero_optimization.offload_optimizer.nvme_path=/tmp";
const char* const kHalf = "zero_optimization.offload_optimizer.ratio=0.5";
const char* const kFewBuffers = "zero_optimization.offload_optimizer.buffer_count=2";

// 12 rows a step, split evenly over ranks and micro-batches.
struct Source {
  int rank, size, accumulation;
  int64_t call = 0;
  absl::StatusOr<at::Tensor> Next() {
    const at::Tensor all = at::sin(at::arange(0, 84, at::kFloat).reshape({12, 7}) +
                                   static_cast<double>(1 + call / accumulation));
    const int64_t share = 12 / size / accumulation;
    const int64_t place = rank * accumulation + call++ % accumulation;
    return all.narrow(0, place * share, share).contiguous();
  }
};

struct Way {
  enum class Place { kHost, kNccl, kStaged };
  Place place = Place::kNccl;
  int size = 1;
  int accumulation = 1;
  int steps = 4;
  int bad_step = -1;  // From 0: its loss is infinite on rank 0.
  bool own = false;   // The program's own optimizer.
  std::vector<std::string> more = {};
};

std::string Text(const Way& way) {
  std::string text = absl::StrCat(way.size, " ranks");
  for (const std::string& setting : way.more) {
    absl::StrAppend(&text, " ", setting);
  }
  return text;
}

struct Outcome {
  std::vector<double> losses, norms, skipped;
  std::string weights, states;  // Hashes of all bits; of rank 0's states.
};

absl::StatusOr<std::unique_ptr<Job>> MakeJob(RankContext* context, const std::string& folder,
                                             const Way& way, FakeGpu* gpu) {
  std::vector<std::string> overrides = {
      "train_micro_batch_size_per_gpu=1", "zero_optimization.reduce_bucket_size=9000",
      absl::StrCat("gradient_accumulation_steps=", way.accumulation)};
  overrides.insert(overrides.end(), way.more.begin(), way.more.end());
  DT_ASSIGN_OR_RETURN(
      auto job, testing::MakeTestJob({.run_dir = folder, .overrides = overrides, .rank = context}));
  if (way.place != Way::Place::kHost) {
    DT_RETURN_IF_ERROR(
        gpu->Attach(job->state(), way.place == Way::Place::kStaged,
                    context != nullptr ? context->group_options() : comm::GroupOptions{}));
  }
  return job;
}

uint64_t HashOf(const std::vector<at::Tensor>& tensors) {
  plan::StableHash hash;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) {
      const at::Tensor values = tensor.detach().contiguous();
      hash.Add(
          absl::string_view(static_cast<const char*>(values.const_data_ptr()), values.nbytes()));
    }
  }
  return hash.value();
}

absl::Status CheckFakes(const FakeGpu& gpu) {
  for (const auto& wrong : {gpu.cuda.violations(), gpu.nccl.violations()}) {
    if (!wrong.empty()) {
      return absl::InternalError(wrong.front());
    }
  }
  return absl::OkStatus();
}

absl::Status Train(RankContext& context, const Way& way, FakeGpu& gpu, Outcome& outcome) {
  at::set_num_threads(1);
  const testing::TempFolder folder;
  DT_ASSIGN_OR_RETURN(auto job, MakeJob(&context, folder.path(), way, &gpu));
  at::manual_seed(5);
  Net net;
  EngineOptions options;
  if (way.own) {
    options.optimizer = std::make_shared<Halves>();
  }
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, net, options));
  Source source{context.rank, context.size, way.accumulation};
  for (int i = 0; i < way.steps; ++i) {
    DT_ASSIGN_OR_RETURN(const StepReport report, engine->Step(source, [&](const at::Tensor& x) {
      const at::Tensor loss = net.Loss(x);
      return Loss(i == way.bad_step && context.rank == 0 ? loss * INFINITY : loss, x.size(0));
    }));
    const double loss = report.loss;
    const double norm = report.grad_norm;
    outcome.losses.push_back(std::isfinite(loss) ? loss : -1);  // JSON knows no infinity.
    outcome.norms.push_back(std::isfinite(norm) ? norm : -1);
    outcome.skipped.push_back(report.skipped ? 1 : 0);
  }
  const EngineState& state = engine->state();
  if (const int64_t done = state.progress.updates + state.progress.skipped; done != way.steps) {
    return absl::InternalError(absl::StrCat(done, " steps are accounted for"));
  }
  std::vector<at::Tensor> kept = {state.optimizer.master};
  for (const StateSlot& slot : state.optimizer.slots) {
    kept.push_back(slot.tensor);
  }
  outcome.states = absl::StrCat(HashOf(kept));
  bool finite = true;
  DT_RETURN_IF_ERROR(engine->WithParameters([&] {
    outcome.weights = absl::StrCat(HashOf(net.parameters()));
    for (const at::Tensor& parameter : net.parameters()) {
      finite = finite && parameter.isfinite().all().item<bool>();
    }
  }));
  if (!finite) {
    return absl::InternalError("weights are not finite");
  }
  kept.clear();
  engine.reset();
  job.reset();
  return CheckFakes(gpu);
}

// Trains on processes; what rank 0 saw, after checking that all saw the same.
Outcome OutcomeOf(const Way& way) {
  SCOPED_TRACE(Text(way));
  comm::FakeFabric fabric;
  auto cluster =
      testing::Cluster::Start({.size = way.size}, [&](RankContext& context) -> absl::Status {
        FakeGpu gpu(&fabric);
        Outcome outcome;
        DT_RETURN_IF_ERROR(Train(context, way, gpu, outcome));
        const Json json = {outcome.losses, outcome.norms, outcome.skipped, outcome.weights,
                           outcome.states};
        return context.store->Set(absl::StrCat("outcome/", context.rank), DumpJson(json),
                                  Deadline::After(absl::Seconds(10)));
      });
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  std::vector<Outcome> all;
  for (int rank = 0; rank < way.size; ++rank) {
    const auto text = (*cluster)->Result(absl::StrCat("outcome/", rank));
    EXPECT_TRUE(text.ok()) << text.status();
    const Json json = *ParseJson(text.value_or(R"([[],[],[],"",""])"), "outcome");
    Outcome& outcome = all.emplace_back();
    outcome.losses = json[0].get<std::vector<double>>();
    outcome.norms = json[1].get<std::vector<double>>();
    outcome.skipped = json[2].get<std::vector<double>>();
    outcome.weights = json[3].get<std::string>();
    outcome.states = json[4].get<std::string>();
    EXPECT_EQ(outcome.losses, all.front().losses) << "rank " << rank;
    EXPECT_EQ(outcome.weights, all.front().weights) << "rank " << rank;
  }
  for (const auto& result : (*cluster)->Join()) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
  return all.front();
}

Way With(Way way, const std::vector<std::string>& more) {
  way.more.insert(way.more.end(), more.begin(), more.end());
  return way;
}

void ExpectSame(const Outcome& outcome, const Outcome& expected) {
  EXPECT_EQ(outcome.losses, expected.losses);
  EXPECT_EQ(outcome.norms, expected.norms);
  EXPECT_EQ(outcome.skipped, expected.skipped);
  EXPECT_EQ(outcome.weights, expected.weights);
  EXPECT_EQ(outcome.states, expected.states);
}

TEST(EngineOffloadDeviceTest, JoinedPiecesAreSideBySideInBothPlaces) {
  const std::vector<UpdatePiece> pieces = {
      {.flat = 100, .local = 0, .elements = 10, .settings = 1, .entry = 4},
      {.flat = 110, .local = 10, .elements = 5, .settings = 2, .entry = 5},
      {.flat = 128, .local = 28, .elements = 4},  // Behind a gap.
      {.flat = 900, .local = 32, .elements = 8},  // In another bucket.
      {.flat = 908, .local = 40, .elements = 2}};
  const std::vector<UpdatePiece> joined = JoinedPieces(pieces);
  const std::vector<UpdatePiece> expected = {{.flat = 100, .local = 0, .elements = 15},
                                             {.flat = 128, .local = 28, .elements = 4},
                                             {.flat = 900, .local = 32, .elements = 10}};
  EXPECT_EQ(joined, expected);
  EXPECT_THAT(JoinedPieces({}), IsEmpty());
}

TEST(EngineOffloadDeviceTest, TrainsToTheBitsOfStatesBesideTheWeights) {
  for (const char* const stage :
       {"zero_optimization.stage=1", "zero_optimization.stage=2", "zero_optimization.stage=3"}) {
    for (const int size : {1, 2}) {
      for (const char* const precision :
           {"bf16.enabled=false", "bf16.enabled=true", "fp16.enabled=true"}) {
        Way near{.size = size, .accumulation = 2};
        near.more = {stage, precision, "gradient_clipping=0.05",
                     R"(optimizer={"type":"AdamW","params":{"lr":0.01,"weight_decay":0.1}})"};
        if (precision == std::string("fp16.enabled=true")) {
          near.more.emplace_back("fp16.initial_scale_power=4");
        }
        const Outcome expected = OutcomeOf(near);
        EXPECT_NE(expected.losses.front(), expected.losses.back());
        SCOPED_TRACE(Text(near));
        ExpectSame(OutcomeOf(With(near, {kCpu, kFewBuffers})), expected);
        if (precision == std::string("bf16.enabled=true")) {
          ExpectSame(OutcomeOf(With(near, {kNvme, kFolder, kHalf})), expected);
        }
      }
    }
  }
}

TEST(EngineOffloadDeviceTest, StagedGroupsAndGraphsOfMicroBatchesGiveTheSameBits) {
  Way near{.place = Way::Place::kStaged, .size = 2, .steps = 6};
  near.more = {"zero_optimization.stage=1", "bf16.enabled=true"};
  ExpectSame(OutcomeOf(With(near, {kCpu})), OutcomeOf(near));
  near.place = Way::Place::kNccl;
  ExpectSame(OutcomeOf(With(near, {kCpu, "cuda_graphs=true"})), OutcomeOf(near));
}

TEST(EngineOffloadDeviceTest, EveryOptimizerOfTheHostRunsAndGivesItsBits) {
  struct Case {
    const char* optimizer;
    const char* precision;
  };
  const std::vector<Case> cases = {
      {R"(optimizer={"type":"SGD","params":{"lr":0.01}})", "bf16.enabled=false"},
      {R"(optimizer={"type":"Adagrad","params":{"lr":0.01}})", "bf16.enabled=true"},
      {R"(optimizer={"type":"Lamb","params":{"lr":0.01,"weight_decay":0.1}})",
       "bf16.enabled=false"},
      {R"(optimizer={"type":"Lamb"})", "bf16.enabled=true"},
      {R"(optimizer={"type":"Muon","params":{"weight_decay":0.1}})", "bf16.enabled=false"},
      {R"(optimizer={"type":"Muon"})", "bf16.enabled=true"},
      {R"(optimizer={"type":"Muon"})", "fp16.enabled=true"},
      {"", "bf16.enabled=true"},  // The program's own.
  };
  for (const Case& test : cases) {
    Way host{.place = Way::Place::kHost, .size = 2, .own = test.optimizer[0] == '\0'};
    host.more = {"zero_optimization.stage=1", "deterministic=true", test.precision};
    if (!host.own) {
      host.more.emplace_back(test.optimizer);
    }
    SCOPED_TRACE(Text(host));
    const Outcome expected = OutcomeOf(host);
    Way device = host;
    device.place = Way::Place::kNccl;
    for (const auto& tier :
         {std::vector<std::string>{kCpu, kFewBuffers}, std::vector<std::string>{kNvme, kFolder}}) {
      const Outcome outcome = OutcomeOf(With(device, tier));
      EXPECT_EQ(outcome.losses, expected.losses);
      EXPECT_EQ(outcome.weights, expected.weights);
      EXPECT_EQ(outcome.states, expected.states);
    }
  }
}

TEST(EngineOffloadDeviceTest, AProgramsOwnOptimizerUpdatesOnTheHostAtAnyStageUnasked) {
  for (const char* const precision : {"bf16.enabled=false", "bf16.enabled=true"}) {
    for (const int stage : {0, 1, 3}) {
      Way host{.place = Way::Place::kHost, .size = 2, .bad_step = 2, .own = true};
      host.more = {absl::StrCat("zero_optimization.stage=", stage), "deterministic=true",
                   precision};
      SCOPED_TRACE(Text(host));
      Way device = host;
      device.place = Way::Place::kNccl;
      const Outcome expected = OutcomeOf(host);
      const Outcome outcome = OutcomeOf(device);
      EXPECT_EQ(outcome.losses, expected.losses);
      EXPECT_EQ(outcome.skipped, expected.skipped);
      EXPECT_EQ(outcome.weights, expected.weights);
      if (stage > 0) {
        ExpectSame(OutcomeOf(With(device, {kCpu})), outcome);
      }
    }
  }
}

TEST(EngineOffloadDeviceTest, RandomBitsOfBf16StatesAreThoseOfTheDevice) {
  Way near{.size = 2};
  near.more = {"zero_optimization.stage=2", "bf16.enabled=true", "bf16.bf16_optimizer_states=true",
               "bf16.stochastic_rounding=true"};
  ExpectSame(OutcomeOf(With(near, {kCpu})), OutcomeOf(near));
}

TEST(EngineOffloadDeviceTest, AStepThatIsNotFiniteChangesNothing) {
  for (const char* const precision :
       {"bf16.enabled=false", "bf16.enabled=true", "fp16.enabled=true"}) {
    for (const int size : {1, 2}) {
      Way near{.size = size, .bad_step = 2};
      near.more = {"zero_optimization.stage=1", precision};
      if (precision == std::string("fp16.enabled=true")) {
        near.more.emplace_back("fp16.initial_scale_power=4");
      }
      SCOPED_TRACE(Text(near));
      const Outcome outcome = OutcomeOf(With(near, {kCpu}));
      EXPECT_EQ(outcome.skipped, (std::vector<double>{0, 0, 1, 0}));
      ExpectSame(outcome, OutcomeOf(near));
    }
  }
}

TEST(EngineOffloadDeviceTest, AnOverflowLowersTheLossScaleAsWithStatesBesideTheWeights) {
  Way near{.size = 2, .steps = 10};
  near.more = {"zero_optimization.stage=2", "fp16.enabled=true", "fp16.initial_scale_power=24"};
  const Outcome expected = OutcomeOf(near);
  EXPECT_EQ(expected.skipped.front(), 1) << "the test needs an overflow";
  ExpectSame(OutcomeOf(With(near, {kCpu})), expected);
}

// The tests from here on train in this process, since no later test forks: a forked child would
// miss this process's threads.

uint64_t HashSavedOrResumed(const std::string& run_dir, const Way& way, bool resume) {
  comm::FakeFabric fabric;
  FakeGpu gpu(&fabric);
  auto job = MakeJob(nullptr, run_dir, With(way, {"checkpoint.interval=3"}), &gpu);
  EXPECT_TRUE(job.ok()) << job.status();
  const uint64_t weights = testing::SaveOrResume<Net, Source>(
      **job, resume, [](Engine&, const Net& net) { return HashOf(net.parameters()); });
  EXPECT_TRUE(CheckFakes(gpu).ok()) << CheckFakes(gpu);
  return weights;
}

TEST(EngineOffloadDeviceTest, CheckpointsGoFromAnyPlaceOfStatesToAnyToTheBit) {
  for (const char* const precision : {"bf16.enabled=false", "bf16.enabled=true"}) {
    const Way base{.more = {"zero_optimization.stage=1", precision}};
    Way host = base;
    host.place = Way::Place::kHost;
    const std::vector<Way> places = {base, With(base, {kCpu}), With(base, {kNvme, kFolder, kHalf}),
                                     With(host, {kNvme, kFolder})};
    const testing::TempFolder plain;
    const uint64_t expected = HashSavedOrResumed(plain.path(), base, false);
    for (const Way& saved : places) {
      const testing::TempFolder folder;
      EXPECT_EQ(HashSavedOrResumed(folder.path(), saved, false), expected) << Text(saved);
      for (const Way& resumed : places) {
        EXPECT_EQ(HashSavedOrResumed(folder.path(), resumed, true), expected)
            << Text(saved) << ", resumed with " << Text(resumed);
      }
    }
  }
}

// One step where all copies of the update after the first `copies` fail; handles that are left.
absl::Status StepWithCopies(const std::vector<std::string>& more, int64_t copies, int& handles) {
  comm::FakeFabric fabric;
  FakeGpu gpu(&fabric);
  absl::Status status;
  {
    const testing::TempFolder folder;
    auto job = MakeJob(nullptr, folder.path(), {.more = more}, &gpu);
    DT_RETURN_IF_ERROR(job.status());
    at::manual_seed(5);
    Net net;
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(**job, net));
    gpu.cuda.FailCopiesAfter(copies);
    Source source{0, 1, 1};
    const auto loss = [&](const at::Tensor& x) { return Loss(net.Loss(x), x.size(0)); };
    status = engine->Step(source, loss).status();
    if (!status.ok()) {
      const absl::Status refused = engine->Step(source, loss).status();
      EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
      EXPECT_THAT(refused.message(), HasSubstr("cannot go on after the step that failed"));
    }
  }
  handles = gpu.cuda.live_handles();
  DT_RETURN_IF_ERROR(CheckFakes(gpu));
  return status;
}

TEST(EngineOffloadDeviceTest, ACopyThatFailsEndsTheRunWithItsReasonAndLeavesNoHandle) {
  const std::vector<std::string> near = {"zero_optimization.stage=1"};
  int before = 0;
  ASSERT_TRUE(StepWithCopies(near, 1 << 20, before).ok());
  for (const auto& tier : {std::vector<std::string>{kCpu, kFewBuffers},
                           std::vector<std::string>{kNvme, kFolder, kFewBuffers}}) {
    std::vector<std::string> more = near;
    more.insert(more.end(), tier.begin(), tier.end());
    int64_t copies = 0;
    absl::Status status = absl::InternalError("none was tried");
    for (; copies < 100 && !status.ok(); ++copies) {
      int after = 0;
      status = StepWithCopies(more, copies, after);
      EXPECT_EQ(after, before) << copies;
      if (!status.ok()) {
        EXPECT_THAT(status.message(), HasSubstr("fake CUDA error 719")) << copies;
      }
    }
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_GT(copies, 12) << "gradients, weights and their return, of several chunks";
  }
}

// An engine where the GPU has `free_bytes`.
absl::Status MakeWith(const Way& way, size_t free_bytes) {
  comm::FakeFabric fabric;
  FakeGpu gpu(&fabric);
  gpu.cuda.SetFreeMemory(free_bytes);
  const testing::TempFolder folder;
  auto job = MakeJob(nullptr, folder.path(), way, &gpu);
  DT_RETURN_IF_ERROR(job.status());
  Net net;
  DT_ASSIGN_OR_RETURN(const auto engine, Engine::Create(**job, net));
  return engine->state().optimizer.slots.at(0).tensor.is_cpu()
             ? absl::OkStatus()
             : absl::InternalError("moments elsewhere");
}

TEST(EngineOffloadDeviceTest, MomentsTakeNothingOfTheDevicesMemory) {
  // 26,694 parameters: 8 bytes each of values and gradients, 8 of moments, and the fresh gradient
  // of the largest tensor: 479 KB, and 265 KB without the moments.
  const Way near{.more = {"zero_optimization.stage=1"}};
  const absl::Status refused = MakeWith(near, 400'000);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("offload_optimizer.device \"cpu\" takes"));
  EXPECT_EQ(MakeWith(With(near, {kCpu}), 400'000), absl::OkStatus());
}

}  // namespace
}  // namespace dtrain::engine_offload_device_test
