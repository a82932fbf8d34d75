// A GPU that never comes to the end of a step: whoever waits for it waits for comm.timeout_s at
// most.
#include "runtime/engine/device/device_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>

#include "ATen/ATen.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "dtrain/engine.h"
#include "tests/runtime/testing/device_net.h"
#include "tests/runtime/testing/device_training.h"
#include "tests/runtime/testing/fake_device.h"
#include "tests/runtime/testing/job_for_tests.h"

namespace dtrain::device_step_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Way;

constexpr double kTimeoutS = 0.2;
constexpr char kHangs[] = "GPU 0 did not finish a step in time";

class DeviceStepTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto job = testing::MakeJob(
        nullptr, folder_.path(),
        {.place = Way::Place::kNccl, .more = {absl::StrCat("comm.timeout_s=", kTimeoutS)}}, &gpu_);
    ASSERT_TRUE(job.ok()) << job.status();
    job_ = *std::move(job);
  }
  void TearDown() override {
    gpu_.cuda.Hang(false);
    job_.reset();
    EXPECT_THAT(gpu_.cuda.violations(), IsEmpty());
  }
  std::unique_ptr<DeviceStep> MakeStep() {
    Job::State& state = job_->state();
    auto step = DeviceStep::Create(*state.device, *state.device_group, nullptr,
                                   {.settings = 0, .timeout = absl::Seconds(kTimeoutS)});
    EXPECT_TRUE(step.ok()) << step.status();
    return *std::move(step);
  }

  const testing::TempFolder folder_;
  comm::FakeFabric fabric_;
  testing::FakeGpu gpu_{&fabric_};
  std::unique_ptr<Job> job_;
};

TEST_F(DeviceStepTest, ThatIsDestroyedWaitsForItsTimeoutAndSaysThatTheDeviceHangs) {
  auto step = MakeStep();
  ASSERT_TRUE(step->Begin().ok());
  gpu_.cuda.Hang(true);
  const auto late = step->End();
  ASSERT_TRUE(late.ok()) << late.status();
  EXPECT_FALSE((*late)->ready());
  const int64_t begun = Clock::Real().MonotonicNanos();
  ::testing::internal::CaptureStderr();
  step.reset();
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_GE(static_cast<double>(Clock::Real().MonotonicNanos() - begun) * 1e-9, kTimeoutS);
  EXPECT_THAT(said, HasSubstr(kHangs));
  EXPECT_TRUE((*late)->ready()) << "it outlives the step";
  EXPECT_TRUE(std::isnan((*late)->Wait().loss));
  EXPECT_TRUE(std::isnan((*late)->Wait().grad_norm));
}

TEST_F(DeviceStepTest, ThatIsReadWaitsForItsTimeoutAndKeepsTheReason) {
  auto step = MakeStep();
  ASSERT_TRUE(step->Begin().ok());
  gpu_.cuda.Hang(true);
  const auto late = step->End();
  ASSERT_TRUE(late.ok()) << late.status();
  EXPECT_TRUE(std::isnan((*late)->Wait().loss));
  gpu_.cuda.Hang(false);
  for (int again = 0; again < 2; ++again) {
    const absl::Status status = step->Settle(Deadline::Infinite());
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_THAT(status.message(), HasSubstr(kHangs));
  }
}

TEST_F(DeviceStepTest, ThatADeviceNeverEndsFailsTheNextStep) {
  testing::Net net;
  auto engine = Engine::Create(*job_, net);
  ASSERT_TRUE(engine.ok()) << engine.status();
  testing::Source source{0, 1, 1};
  const auto step = [&] {
    return (*engine)->Step(source,
                           [&](const at::Tensor& x) { return Loss(net.Loss(x), x.size(0)); });
  };
  gpu_.cuda.Hang(true);
  const auto first = step();
  ASSERT_TRUE(first.ok()) << first.status() << ": no host waits inside a step";
  const absl::Status second = step().status();
  EXPECT_EQ(second.code(), absl::StatusCode::kDeadlineExceeded) << second;
  EXPECT_THAT(second.message(), HasSubstr(kHangs));
  EXPECT_TRUE(std::isnan(static_cast<double>(first->loss)));
  EXPECT_THAT(step().status().message(),
              HasSubstr("cannot go on after the step that failed before"));
  gpu_.cuda.Hang(false);
  engine->reset();
}

}  // namespace
}  // namespace dtrain::device_step_test
