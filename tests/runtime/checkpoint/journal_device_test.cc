// checkpoint.journal for engines on a GPU, over the fakes: a run that is cut between checkpoints
// resumes behind its last step, and goes on with the bits of one that was never cut; steps wait for
// nothing. Copies run on streams that are threads and start late, so that what does not wait for
// one is wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "runtime/job/job_state.h"
#include "tests/runtime/testing/fake_device.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "tests/runtime/testing/journal_training.h"
#include "tests/runtime/testing/saved_step.h"

namespace dtrain::journal_device_test {
namespace {

using testing::FakeGpu;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::JournalOutcome;
using testing::JournalTraining;
using testing::Net;
using testing::RankContext;
using testing::RecordsOf;
using testing::SavedStep;

enum class Place { kNccl, kStaged };

// Waits of the host for the device, in the steps 5 to 7, which save nothing.
struct Waits {
  int before = 0;
  int all = 0;
};

JournalOutcome Train(int ranks, const std::string& folder, const JournalTraining& training,
                     Place place = Place::kNccl, bool counts_waits = false) {
  comm::FakeFabric fabric;
  return testing::JournalOutcomeOf(
      ranks, folder, [&](RankContext& context, JournalOutcome& outcome) -> absl::Status {
        FakeGpu gpu(&fabric);
        const auto open = [&](RankContext& of, Job& job) {
          return gpu.Attach(job.state(), place == Place::kStaged, of.group_options());
        };
        Waits waits;
        JournalTraining own = training;
        if (counts_waits) {
          own.after_save = [&](int64_t step) {
            const int now = gpu.cuda.synchronizations();
            waits.all += step > 4 && step < 8 ? now - waits.before : 0;
            waits.before = now;
          };
        }
        DT_RETURN_IF_ERROR(testing::TrainJournalled(context, folder, own, open, outcome));
        for (const auto& wrong : {gpu.cuda.violations(), gpu.nccl.violations()}) {
          if (!wrong.empty()) {
            return absl::InternalError(wrong.front());
          }
        }
        if (gpu.cuda.live_handles() != 0) {
          return absl::InternalError("something of the device was not freed");
        }
        return waits.all == 0 ? absl::OkStatus()
                              : absl::InternalError(absl::StrCat(waits.all, " waits in steps"));
      });
}

std::vector<double> Tail(const std::vector<double>& losses, size_t count) {
  return {losses.end() - static_cast<std::ptrdiff_t>(count), losses.end()};
}

struct Way {
  const char* name;
  int ranks;
  std::vector<std::string> overrides;
  Place place = Place::kNccl;
  int64_t bad_step = -1;
};

class JournalDeviceTest : public ::testing::TestWithParam<Way> {};

const char* const kOffload = R"(zero_optimization.offload_optimizer={"device":"cpu"})";

INSTANTIATE_TEST_SUITE_P(
    Ways, JournalDeviceTest,
    ::testing::Values(Way{"stage0", 2, {}},
                      Way{"stage0_graphs_sync_async_save",
                          1,
                          {"cuda_graphs=true", "checkpoint.async=true", "checkpoint.journal=sync"}},
                      Way{"stage1_bf16_staged",
                          2,
                          {"zero_optimization.stage=1", "bf16.enabled=true",
                           "module_buffers=local"},
                          Place::kStaged},
                      Way{"stage2_fp16_skipped",
                          2,
                          {"zero_optimization.stage=2", "fp16.enabled=true",
                           "fp16.initial_scale_power=8", "fp16.hysteresis=1"},
                          Place::kNccl,
                          5},
                      Way{"stage3_skip_unused",
                          2,
                          {"zero_optimization.stage=3", "optimizer.skip_unused_parameters=true"}},
                      Way{"stage2_offloaded_states", 1, {"zero_optimization.stage=2", kOffload}},
                      Way{"stage1_fp32_journal",
                          2,
                          {"zero_optimization.stage=1", "checkpoint.journal_dtype=fp32"}}),
    [](const auto& test) { return std::string(test.param.name); });

TEST_P(JournalDeviceTest, ACutRunGoesOnWithTheBitsOfAnUncutOne) {
  const Way& way = GetParam();
  JournalTraining training{.overrides = way.overrides, .bad_step = way.bad_step};
  const testing::TempFolder uncut;
  const JournalOutcome whole = Train(way.ranks, uncut.path(), training, way.place);
  ASSERT_EQ(whole.losses.size(), 9U);
  EXPECT_EQ(whole.losses[4] == -1, way.bad_step == 5);
  const testing::TempFolder cut;
  JournalTraining first = training;
  first.until = 6;
  first.ends = false;
  EXPECT_EQ(Train(way.ranks, cut.path(), first, way.place).resumed, 0);
  const JournalOutcome second = Train(way.ranks, cut.path(), training, way.place);
  EXPECT_EQ(second.resumed, 6);
  EXPECT_EQ(second.losses, Tail(whole.losses, 3));
  EXPECT_FALSE(SavedStep(uncut.path(), 9).empty());
  EXPECT_EQ(SavedStep(cut.path(), 9), SavedStep(uncut.path(), 9));
}

// One rank replays what two have journalled, at another stage, to the bits of a checkpoint.
TEST(JournalDeviceRanksTest, AnotherNumberReplaysToTheSameBits) {
  std::string saves[2];
  for (const bool journalled : {false, true}) {
    const testing::TempFolder folder;
    Train(2, folder.path(),
          {.overrides = {"zero_optimization.stage=1"}, .until = 6, .ends = !journalled});
    const JournalOutcome more =
        Train(1, folder.path(), {.overrides = {"zero_optimization.stage=3"}, .until = 7});
    EXPECT_EQ(more.resumed, 6);
    saves[journalled ? 1 : 0] = SavedStep(folder.path(), 7);
  }
  EXPECT_FALSE(saves[0].empty());
  EXPECT_EQ(saves[0], saves[1]);
}

// The folder as it is when MaybeSave has returned is what a power cut leaves.
TEST(JournalDeviceDurableTest, StepsAreDurableWhenTheyShouldBe) {
  for (const bool sync : {false, true}) {
    const testing::TempFolder folder;
    const testing::TempFolder left;
    JournalTraining training{
        .overrides = {absl::StrCat("checkpoint.journal=", sync ? "sync" : "async")},
        .until = 7,
        .ends = false};
    training.after_save = [&](int64_t step) {
      if (step == 7) {
        std::filesystem::copy(folder.path(), left.path(),
                              std::filesystem::copy_options::recursive |
                                  std::filesystem::copy_options::overwrite_existing);
      }
    };
    Train(1, folder.path(), training);
    const int64_t resumed = Train(1, left.path(), {.until = 8}).resumed;
    EXPECT_GE(resumed, sync ? 7 : 6);
    EXPECT_LE(resumed, 7);
  }
}

TEST(JournalDeviceStepTest, WaitsForNothing) {
  const testing::TempFolder folder;
  Train(1, folder.path(), {.until = 8}, Place::kNccl, /*counts_waits=*/true);
  EXPECT_THAT(RecordsOf(folder.path(), "journal_off"), IsEmpty());
}

// LibTorch's counters tell, at no cost.
TEST(JournalDeviceOffTest, WhereTheProgramChangesWeights) {
  const testing::TempFolder folder;
  JournalTraining training{.until = 7, .ends = false};
  training.after_step = [](Net& net, int64_t step) {
    if (step == 6) {
      const at::NoGradGuard no_grad;
      net.c.clamp_(-0.01, 0.01);
    }
  };
  Train(1, folder.path(), training);
  EXPECT_THAT(RecordsOf(folder.path(), "journal_off"),
              HasSubstr("the program has changed weights between two steps"));
  EXPECT_EQ(Train(1, folder.path(), {.until = 8}).resumed, 6);  // Step 7 began with other weights.
}

}  // namespace
}  // namespace dtrain::journal_device_test
