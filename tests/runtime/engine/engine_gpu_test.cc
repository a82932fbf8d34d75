// The engine on a real GPU: one rank trains as on the CPU, two share the GPU through host memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/status.h"
#include "dtrain/engine.h"
#include "dtrain/recompute.h"
#include "runtime/checkpoint/engine_snapshot.h"
#include "runtime/model/cpu_rng.h"
#include "runtime/optimizer/engine_state.h"
#include "tests/runtime/testing/device_net.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "tests/runtime/testing/real_gpu.h"

namespace dtrain::engine_gpu_test {
namespace {

using testing::Net;
using testing::RankContext;
using testing::Source;

class EngineGpuTest : public testing::RealGpuTest {};

absl::StatusOr<std::unique_ptr<Job>> MakeJob(RankContext& context, const std::string& folder,
                                             std::vector<std::string> more) {
  std::vector<std::string> overrides = {
      "train_micro_batch_size_per_gpu=1", "gradient_accumulation_steps=2",
      "zero_optimization.reduce_bucket_size=2500", "gradient_clipping=0.05",
      R"(optimizer={"type":"AdamW","params":{"lr":0.01,"weight_decay":0.1}})"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  DT_ASSIGN_OR_RETURN(
      auto job, testing::MakeTestJob(
                    {.run_dir = folder, .overrides = std::move(overrides), .rank = &context}));
  DT_RETURN_IF_ERROR(testing::OpenRealDevice(context, *job));
  return job;
}

using LossOf = std::function<at::Tensor(Net& net, const at::Tensor& x)>;

at::Tensor NetLoss(Net& net, const at::Tensor& x) { return net.Loss(x); }

using Settings = std::vector<std::string>;
using Numbers = std::vector<double>;

absl::Status Train(RankContext& context, const Settings& more, const LossOf& loss,
                   Numbers& numbers) {
  const testing::TempFolder folder;
  DT_ASSIGN_OR_RETURN(auto job, MakeJob(context, folder.path(), more));
  at::manual_seed(static_cast<uint64_t>(7 + context.rank));
  Net net;
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, net));
  Source source{context.rank, context.size, 2};
  std::vector<StepReport> reports;
  for (int i = 0; i < 8; ++i) {
    DT_ASSIGN_OR_RETURN(reports.emplace_back(), engine->Step(source, [&](const at::Tensor& x) {
      return Loss(loss(net, x.to(job->device())), x.size(0));
    }));
  }
  for (const StepReport& report : reports) {
    numbers.push_back(report.loss);
    numbers.push_back(report.grad_norm);
  }
  for (const at::Tensor& tensor : {net.a, net.b, net.c, net.mean}) {
    numbers.push_back(tensor.detach().to(at::kFloat).abs().sum().item<double>());
  }
  return absl::OkStatus();
}

// The numbers of each training in turn, in the same ranks: starting CUDA takes longer than
// training. REQUIRES: all on the CPU or all on a GPU, because LibTorch learns at its first backward
// which devices there are. `log`, if given, gets the text that all ranks wrote to stderr.
std::vector<Numbers> NumbersOfEach(int size, const std::vector<Settings>& trainings,
                                   const LossOf& loss = NetLoss, std::string* log = nullptr) {
  if (log != nullptr) {
    ::testing::internal::CaptureStderr();  // The ranks are forked with it.
  }
  auto cluster = testing::Cluster::Start(
      {.size = size, .time_bound = absl::Seconds(240)}, [&](RankContext& context) -> absl::Status {
        const std::shared_ptr<comm::Store> store(context.store, [](comm::Store*) {});
        std::vector<Numbers> all(trainings.size());
        absl::Status trained;
        for (size_t i = 0; i < trainings.size() && trained.ok(); ++i) {
          const auto own = comm::NewPrefixStore(store, absl::StrCat("training/", i));
          RankContext here = context;
          here.store = own.get();  // Its groups meet anew.
          trained = Train(here, trainings[i], loss, all[i]);
        }
        // A training that fails leaves no one waiting for its numbers.
        trained.Update(context.store->Set(absl::StrCat("numbers/", context.rank),
                                          DumpJson(Json(all)), Deadline::After(absl::Seconds(10))));
        return trained;
      });
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  const auto text = (*cluster)->Result("numbers/0");
  for (const auto& result : (*cluster)->Join()) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
  if (log != nullptr) {
    *log = ::testing::internal::GetCapturedStderr();
  }
  auto all = ParseJson(text.value_or("[]"), "numbers")->get<std::vector<Numbers>>();
  all.resize(trainings.size());
  return all;
}

Numbers NumbersOf(int size, const Settings& more, const LossOf& loss = NetLoss,
                  std::string* log = nullptr) {
  return NumbersOfEach(size, {more}, loss, log)[0];
}

void ExpectNear(const std::vector<double>& device, const std::vector<double>& host,
                double tolerance) {
  ASSERT_EQ(device.size(), host.size());
  for (size_t i = 0; i < host.size(); ++i) {
    EXPECT_NEAR(device[i], host[i], tolerance * std::abs(host[i])) << "number " << i;
  }
}

Settings With(Settings settings, const std::string& one) {
  settings.push_back(one);
  return settings;
}

// Each of `settings` on the GPU and on the CPU.
void ExpectAsOnTheCpu(int size, const std::vector<Settings>& settings, double tolerance) {
  const auto numbers_on = [&](const char* device) {
    std::vector<Settings> trainings;
    for (const Settings& one : settings) {
      trainings.push_back(With(one, device));
    }
    return NumbersOfEach(size, trainings);
  };
  const std::vector<Numbers> host = numbers_on("device=cpu");
  const std::vector<Numbers> device = numbers_on("device=cuda");
  for (size_t i = 0; i < settings.size(); ++i) {
    SCOPED_TRACE(absl::StrJoin(settings[i], " "));
    ExpectNear(device[i], host[i], tolerance);
  }
}

std::vector<Settings> EveryStage() {
  std::vector<Settings> all;
  for (const int stage : {0, 1, 2, 3}) {
    all.push_back({absl::StrCat("zero_optimization.stage=", stage),
                   "zero_optimization.stage3_param_persistence_threshold=100"});
  }
  return all;
}

TEST_F(EngineGpuTest, OneRankTrainsAsOnTheCpu) {
  // fp32 products of a GPU sum in another order; 8 steps of AdamW carry that on.
  ExpectAsOnTheCpu(1, EveryStage(), 2e-3);
}

TEST_F(EngineGpuTest, Bf16TrainsAsOnTheCpu) {
  ExpectAsOnTheCpu(1, {{"bf16.enabled=true"}}, 0.05);  // 8 bits.
}

TEST_F(EngineGpuTest, TwoRanksShareAGpuThroughHostMemory) {
  ExpectAsOnTheCpu(2, EveryStage(), 2e-3);
}

TEST_F(EngineGpuTest, OffloadedStatesTrainAsThoseBesideTheWeights) {
  const std::string section = "zero_optimization.offload_optimizer.";
  for (const int size : {1, 2}) {
    std::vector<Settings> trainings;
    for (const char* const precision : {"bf16.enabled=false", "bf16.enabled=true"}) {
      const Settings near = {"device=cuda", "zero_optimization.stage=1", precision};
      trainings.push_back(near);
      trainings.push_back(With(near, section + "device=cpu"));
      trainings.push_back(With(With(near, section + "device=nvme"), section + "nvme_path=/tmp"));
    }
    const std::vector<Numbers> numbers = NumbersOfEach(size, trainings);
    for (size_t i = 0; i < numbers.size(); ++i) {
      SCOPED_TRACE(absl::StrJoin(trainings[i], " "));
      // The host's AdamW may round the last bit otherwise than the kernel.
      ExpectNear(numbers[i], numbers[i / 3 * 3], 1e-3);
    }
  }
  const std::string muon = R"(optimizer={"type":"Muon"})";
  ExpectNear(
      NumbersOf(1, {"device=cuda", "zero_optimization.stage=2", section + "device=cpu", muon}),
      NumbersOf(1, {"device=cpu", muon}), 2e-3);
}

TEST_F(EngineGpuTest, OffloadedWeightsTrainAsThoseOnTheDevice) {
  const std::string section = "zero_optimization.offload_param.";
  const std::string states = "zero_optimization.offload_optimizer.device=cpu";
  for (const char* const precision : {"bf16.enabled=false", "bf16.enabled=true"}) {
    for (const int size : {1, 2}) {
      const std::vector<std::string> near = {
          "device=cuda", "zero_optimization.stage=3",
          "zero_optimization.stage3_param_persistence_threshold=100", precision};
      const std::vector<double> expected = NumbersOf(size, near);
      for (const std::string& tier : {section + "device=cpu", section + "device=nvme"}) {
        std::vector<std::string> far = near;
        far.insert(far.end(), {tier, section + "nvme_path=/tmp"});
        EXPECT_EQ(NumbersOf(size, far), expected) << tier;
        far.push_back(states);
        // The host's AdamW may round the last bit otherwise than the kernel.
        ExpectNear(NumbersOf(size, far), expected, 1e-3);
      }
    }
  }
}

TEST_F(EngineGpuTest, ActivationsInPageLockedMemoryChangeNoBit) {
  const LossOf segments = [](Net& net, const at::Tensor& x) {
    at::Tensor h = x.to(net.a.scalar_type()).matmul(net.a).repeat({1, Net::kCopies});
    for (int64_t i = 0; i < Net::kSegments; ++i) {
      h = Recompute([](const at::Tensor& in) { return in + at::dropout(at::tanh(in), 0.2, true); },
                    h);
    }
    return (h.view({-1, Net::kCopies, 64}).mean(1).matmul(net.b) * net.c).square().sum(at::kFloat);
  };
  for (const char* const precision : {"bf16.enabled=false", "bf16.enabled=true"}) {
    for (const int stage : {0, 3}) {
      const std::vector<std::string> near = {
          "device=cuda", absl::StrCat("zero_optimization.stage=", stage), precision};
      std::vector<std::string> far = near;
      far.emplace_back("activation_checkpointing.cpu_checkpointing=true");
      EXPECT_EQ(NumbersOf(1, far, segments), NumbersOf(1, near, segments)) << precision << stage;
    }
  }
}

TEST_F(EngineGpuTest, OptimizersOfWholeParametersTrainAsOnTheCpu) {
  for (const auto& [optimizer, tolerance] : std::vector<std::pair<std::string, double>>{
           {R"(optimizer={"type":"Lamb","params":{"lr":0.01}})", 2e-3},
           {R"(optimizer={"type":"Muon","params":{"lr":0.01}})", 5e-2}}) {  // bf16's products.
    ExpectAsOnTheCpu(
        1, {{"zero_optimization.stage=0", optimizer}, {"zero_optimization.stage=3", optimizer}},
        tolerance);
  }
}

TEST_F(EngineGpuTest, WhatIsRoundedOnItsWayTrainsAsOnTheCpu) {
  const std::string zero = "zero_optimization.";
  const std::vector<std::vector<std::string>> ways = {
      {zero + "stage=3", zero + "zero_hpz_partition_size=2", zero + "zero_quantized_weights=true",
       zero + "zero_quantized_gradients=true",
       zero + "stage3_param_persistence_threshold=100"},  // Larger ones are gathered.
      {"comm.compression.type=int8", "comm.compression.start_step=2",
       "comm.compression.min_elements=0"},
      {"comm.compression.type=powersgd", "comm.compression.start_step=2",
       "comm.compression.min_elements=0", "comm.compression.rank=2"}};
  for (std::vector<std::string> way : ways) {
    way.emplace_back("device=cpu");
    const std::vector<double> host = NumbersOf(2, way);
    way.back() = "device=cuda";
    // A last bit of a product may move a number by a whole step of its block.
    ExpectNear(NumbersOf(2, way), host, 2e-2);
  }
}

TEST_F(EngineGpuTest, ARunRepeatsItsNumbers) {
  const Numbers first = NumbersOf(1, {"device=cuda"});
  EXPECT_EQ(NumbersOf(1, {"device=cuda"}), first);
}

// Lines of `rank` in `log` that contain `part`.
int LinesOf(int rank, const std::string& part, const std::string& log) {
  int lines = 0;
  for (const absl::string_view line : absl::StrSplit(log, '\n')) {
    lines += absl::StrContains(line, absl::StrCat(" rank ", rank, "] ")) &&
             absl::StrContains(line, part);
  }
  return lines;
}

// With a draw of LibTorch's generator in every launch, and one that fails: a closure that reads its
// loss spoils the capture, after which the generator and the allocator must work as before.
TEST_F(EngineGpuTest, GraphsTrainAsEagerStepsAndACaptureThatFailsLeavesNoTrace) {
  const LossOf with_dropout = [](Net& net, const at::Tensor& x) {
    return net.Loss(at::dropout(x, 0.1, /*train=*/true));
  };
  const LossOf reading = [&](Net& net, const at::Tensor& x) {
    const at::Tensor loss = with_dropout(net, x);
    return loss.item<double>() > 1e9 ? loss * 0.5 : loss;
  };
  struct Case {
    LossOf loss;
    bool captured;
  };
  for (const auto& [loss, captured] :
       {Case{NetLoss, true}, Case{with_dropout, true}, Case{reading, false}}) {
    for (const int size : {1, 2}) {  // Products in a graph may take another algorithm.
      std::string log;
      ExpectNear(NumbersOf(size, {"device=cuda", "cuda_graphs=true"}, loss, &log),
                 NumbersOf(size, {"device=cuda"}, loss), 1e-4);
      for (int rank = 0; rank < size; ++rank) {
        EXPECT_EQ(LinesOf(rank, "holds a micro-batch", log), captured ? 2 : 0) << log;
        EXPECT_EQ(LinesOf(rank, "micro-batches run eagerly", log), captured ? 0 : 1) << log;
      }
    }
  }
}

// Checkpoints hold the state of the device; a step that fails leaves no trace.
TEST_F(EngineGpuTest, SnapshotsHoldTheDevicesStateAndAFailedStepLeavesNone) {
  const auto results = testing::RunRanks({.size = 1}, [](RankContext& context) -> absl::Status {
    const testing::TempFolder folder;
    DT_ASSIGN_OR_RETURN(auto job, MakeJob(context, folder.path(), {"device=cuda"}));
    Net net;
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, net));
    Source source{0, 1, 2};
    const auto loss = [&](const at::Tensor& x) {
      const at::Tensor here = at::dropout(x.to(job->device()), 0.1, /*train=*/true);
      return Loss(net.Loss(here), x.size(0));
    };
    DT_RETURN_IF_ERROR(engine->Step(source, loss).status());
    EngineSnapshot snapshot;
    DT_RETURN_IF_ERROR(EngineSnapshots(engine->state(), {}, "").AddTo(snapshot));
    const at::Tensor held = engine->state().optimizer.slots[0].tensor.cpu();
    const auto& saved = snapshot.source.state[0].bytes;
    if (saved.size() != held.nbytes() ||
        std::memcmp(saved.data(), held.const_data_ptr(), saved.size()) != 0) {
      return absl::InternalError("the snapshot's first slot is not what the device holds");
    }
    const at::Tensor rng = DeviceRngState().clone();
    const at::Tensor mean = net.mean.cpu();
    const auto failed = engine->Step(source, [&](const at::Tensor& x) -> Loss {
      loss(x).sum.sum();
      throw std::runtime_error("on purpose");
    });
    const bool undone = at::equal(rng, DeviceRngState()) && at::equal(mean, net.mean.cpu());
    return !failed.ok() && undone ? absl::OkStatus()
                                  : absl::InternalError("a failed step left its traces");
  });
  EXPECT_TRUE(results[0].status.ok()) << results[0].status;
}

}  // namespace
}  // namespace dtrain::engine_gpu_test
