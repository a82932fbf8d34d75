// offload_param on a GPU, over the fakes: a rank's share of the weights at stage 3 is the host's,
// wherever the optimizer's states are, and training has the bits of weights on the device. Copies
// run on streams that are threads and start late, so that what does not wait for one is wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "dtrain/engine.h"
#include "runtime/optimizer/engine_state.h"
#include "tests/runtime/testing/device_net.h"
#include "tests/runtime/testing/device_training.h"
#include "tests/runtime/testing/fake_device.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "tests/runtime/testing/save_or_resume.h"

namespace dtrain::offload_param_device_test {
namespace {

using testing::ExpectSame;
using testing::FakeGpu;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::MakeJob;
using testing::Net;
using testing::Outcome;
using testing::OutcomeOf;
using testing::Source;
using testing::Way;
using testing::With;
using Settings = std::vector<std::string>;

const char* const kStage3 = "zero_optimization.stage=3";
const char* const kSmall = "zero_optimization.stage3_param_persistence_threshold=100";
const char* const kPinned = "zero_optimization.offload_param.device=cpu";
const char* const kFile = "zero_optimization.offload_param.device=nvme";
const char* const kFolder = "zero_optimization.offload_param.nvme_path=/tmp";
const char* const kStates = "zero_optimization.offload_optimizer.device=cpu";

TEST(OffloadParamDeviceTest, TheDevicesOptimizerUpdatesSharesOfTheHostWithoutAWait) {
  struct Case {
    int size;
    Way::Place place;
    Settings more;
  };
  const char* const kLamb = R"(optimizer={"type":"Lamb","params":{"lr":0.01,"weight_decay":0.1}})";
  const char* const kMuon = R"(optimizer={"type":"Muon","params":{"lr":0.01,"weight_decay":0.1}})";
  for (const Case& test : {Case{3, Way::Place::kNccl, {"bf16.enabled=false"}},
                           Case{1, Way::Place::kNccl, {"bf16.enabled=true"}},
                           Case{2, Way::Place::kNccl, {"fp16.enabled=true"}},
                           Case{3, Way::Place::kStaged, {"bf16.enabled=true"}},
                           Case{2, Way::Place::kNccl, {"bf16.enabled=false", kLamb}},
                           Case{2, Way::Place::kNccl, {"bf16.enabled=true", kMuon}}}) {
    SCOPED_TRACE(absl::StrCat(absl::StrJoin(test.more, " "), ", ", test.size, " ranks, place ",
                              static_cast<int>(test.place)));
    const Way near =
        With(With({.place = test.place, .accumulation = 2}, test.more), {kStage3, kSmall});
    const Outcome expected = OutcomeOf(test.size, near);
    EXPECT_NE(expected.losses.front(), expected.losses.back());
    for (const char* const live : {"1000000", "1"}) {
      const std::string limit = absl::StrCat("zero_optimization.stage3_max_live_parameters=", live);
      ExpectSame(OutcomeOf(test.size, With(near, {kPinned, limit})), expected);
    }
  }
}

TEST(OffloadParamDeviceTest, AStepThatIsNotFiniteChangesNoShareAndGraphsOfUpdatesChangeTheSame) {
  for (const char* const precision : {"bf16.enabled=false", "bf16.enabled=true"}) {
    const Way near{.place = Way::Place::kNccl, .bad_step = 2, .more = {precision, kStage3, kSmall}};
    const Outcome expected = OutcomeOf(2, near);
    EXPECT_EQ(expected.skipped[2], 1);
    const Outcome outcome = OutcomeOf(2, With(near, {kPinned}));
    EXPECT_EQ(outcome.skipped, expected.skipped);
    EXPECT_EQ(outcome.weights, expected.weights);
    const Way well{.place = Way::Place::kNccl, .more = {precision, kStage3, kSmall}};
    ExpectSame(OutcomeOf(2, With(well, {kPinned, "cuda_graphs=true"})), OutcomeOf(2, well));
  }
}

TEST(OffloadParamDeviceTest, SharesInAFileGiveTheBitsOfSharesOnTheDevice) {
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
    const Way near{.place = test.place,
                   .accumulation = 2,
                   .waits = true,
                   .more = {test.precision, kStage3, kSmall}};
    const Outcome expected = OutcomeOf(test.size, near);
    for (const char* const live : {"1000000", "1"}) {
      const std::string limit = absl::StrCat("zero_optimization.stage3_max_live_parameters=", live);
      for (const Settings& states : {Settings{}, Settings{kStates}}) {
        SCOPED_TRACE(absl::StrCat("live ", live, absl::StrJoin(states, " ")));
        ExpectSame(OutcomeOf(test.size, With(With(near, {kFile, kFolder, limit}), states)),
                   expected);
      }
    }
  }
}

TEST(OffloadParamDeviceTest, AStepThatIsNotFiniteLeavesTheFileAsItWas) {
  for (const char* const precision : {"bf16.enabled=false", "bf16.enabled=true"}) {
    Way near{.place = Way::Place::kNccl, .bad_step = 2, .waits = true};
    near.more = {precision, kStage3, kSmall};
    const Outcome expected = OutcomeOf(2, near);
    for (const Settings& states : {Settings{}, Settings{kStates}}) {
      const Outcome outcome = OutcomeOf(2, With(With(near, {kFile, kFolder}), states));
      EXPECT_EQ(outcome.skipped, expected.skipped);
      EXPECT_EQ(outcome.weights, expected.weights);
    }
  }
}

// The tests from here on train in this process, since no later test forks: a forked child would
// miss this process's threads.

std::vector<at::Tensor> WeightsOf(Engine& engine, const Net& net) {
  std::vector<at::Tensor> weights;
  EXPECT_EQ(engine.WithParameters([&] {
    for (const at::Tensor& parameter : net.parameters()) {
      weights.push_back(parameter.detach().clone());
    }
  }),
            absl::OkStatus());
  return weights;
}

std::vector<at::Tensor> WeightsSavedOrResumed(const std::string& run_dir, const Way& way,
                                              bool resume) {
  comm::FakeFabric fabric;
  FakeGpu gpu(&fabric);
  auto job = MakeJob(nullptr, run_dir, With(way, {"checkpoint.interval=3"}), &gpu);
  EXPECT_TRUE(job.ok()) << job.status();
  auto weights = testing::SaveOrResume<Net, Source>(**job, resume, WeightsOf);
  EXPECT_THAT(gpu.cuda.violations(), IsEmpty());
  return weights;
}

void ExpectEqual(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(a[i].equal(b[i])) << i;
  }
}

TEST(OffloadParamDeviceTest, CheckpointsGoFromAnyPlaceOfWeightsToAnyToTheBit) {
  for (const char* const precision : {"bf16.enabled=false", "bf16.enabled=true"}) {
    const Way base{.place = Way::Place::kNccl, .more = {precision, kStage3, kSmall}};
    const std::vector<Way> places = {base, With(base, {kPinned}), With(base, {kPinned, kStates}),
                                     With(base, {kFile, kFolder}),
                                     With(base, {kFile, kFolder, kStates})};
    const testing::TempFolder plain;
    const auto expected = WeightsSavedOrResumed(plain.path(), base, false);
    for (size_t saved = 0; saved < places.size(); ++saved) {
      const testing::TempFolder folder;
      ExpectEqual(WeightsSavedOrResumed(folder.path(), places[saved], false), expected);
      for (size_t resumed = 0; resumed < places.size(); ++resumed) {
        SCOPED_TRACE(absl::StrCat(precision, ": ", saved, " to ", resumed));
        ExpectEqual(WeightsSavedOrResumed(folder.path(), places[resumed], true), expected);
      }
    }
  }
}

TEST(OffloadParamDeviceTest, RulesOfWholeParametersWithWeightsInAFileAreRefusedByName) {
  for (const char* const optimizer : {"Lamb", "Muon"}) {
    comm::FakeFabric fabric;
    FakeGpu gpu(&fabric);
    const testing::TempFolder folder;
    const std::string type = absl::StrCat(R"(optimizer={"type":")", optimizer, R"("})");
    auto job = MakeJob(nullptr, folder.path(),
                       {.place = Way::Place::kNccl, .more = {kStage3, kFile, kFolder, type}}, &gpu);
    ASSERT_TRUE(job.ok()) << job.status();
    Net net;
    const absl::Status refused = Engine::Create(**job, net).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented) << refused;
    EXPECT_THAT(refused.message(), HasSubstr(R"(offload_param.device "nvme" with )"));
    EXPECT_THAT(refused.message(),
                HasSubstr("without offload_optimizer is not supported on a GPU"));
  }
}

// A step where all copies to and from page-locked memory after the first `copies` fail; handles
// that are left.
absl::Status StepWithCopies(const Settings& more, int64_t copies, int& handles) {
  comm::FakeFabric fabric;
  FakeGpu gpu(&fabric);
  absl::Status status;
  {
    const testing::TempFolder folder;
    auto job = MakeJob(nullptr, folder.path(), {.place = Way::Place::kNccl, .more = more}, &gpu);
    DT_RETURN_IF_ERROR(job.status());
    Net net;
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(**job, net));
    EXPECT_TRUE(engine->state().shard_values.is_cpu());
    gpu.cuda.FailCopiesAfter(copies);
    Source source{0, 1, 1};
    status = engine->Step(source, [&](const at::Tensor& x) { return Loss(net.Loss(x), x.size(0)); })
                 .status();
  }
  handles = gpu.cuda.live_handles();
  EXPECT_THAT(gpu.cuda.violations(), IsEmpty());
  return status;
}

TEST(OffloadParamDeviceTest, AShareThatDoesNotComeEndsTheStepWithItsReasonAndLeavesNoHandle) {
  for (const Settings& more :
       {Settings{kStage3, kSmall, kPinned}, Settings{kStage3, kSmall, kFile, kFolder},
        Settings{kStage3, kSmall, kFile, kFolder, kStates}}) {
    SCOPED_TRACE(absl::StrJoin(more, " "));
    int before = 0;
    ASSERT_EQ(StepWithCopies(more, 1 << 20, before), absl::OkStatus());
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
    EXPECT_GT(copies, 1);
  }
}

}  // namespace
}  // namespace dtrain::offload_param_device_test
