// The step journal with checkpoint.local_dir and checkpoint.replicas: a run that has lost a host,
// or whose journal is damaged on a disk, goes on behind its last step with the same bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/format/step_id.h"
#include "tests/runtime/checkpoint/hosts_training.h"
#include "tests/runtime/testing/job_for_tests.h"

namespace dtrain::local_journal_test {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using namespace testing::hosts;  // NOLINT(google-build-using-namespace)

std::vector<std::string> Journalled(const std::string& way = "sync") {
  return {"checkpoint.replicas=1", "checkpoint.interval=4",
          absl::StrCat("checkpoint.journal=", way), "checkpoint.journal_share=1"};
}

class LostJournalTest : public ::testing::TestWithParam<LostHost> {};

// The newest durable step is the journal's last: the newest checkpoint is of step 4.
TEST_P(LostJournalTest, TheRunGoesOnBehindTheLastStepWithTheSameBits) {
  const auto [name, hosts, lost] = GetParam();
  const testing::TempFolder folder;
  const Training cut{.hosts = hosts, .overrides = Journalled(), .until = 7, .ends = false};
  EXPECT_THAT(Train(folder.path(), cut), Each(absl::OkStatus()));
  EXPECT_THAT(Records(folder.path(), "journal_alone"), IsEmpty());
  LoseSharedStep(folder.path(), 4);
  std::filesystem::remove_all(HostFolder(folder.path(), lost));
  EXPECT_THAT(Train(folder.path(), cut), Each(absl::OkStatus()));
  EXPECT_EQ(Resumed(folder.path()), 7);
  // The checkpoint from which the run went on lies on the new host's disk again.
  std::string lost_rank;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    lost_rank = hosts[rank] == lost ? absl::StrCat(rank) : lost_rank;
  }
  EXPECT_THAT(Below(Disk(folder.path(), lost)),
              Contains(absl::StrCat("journal/step-000000000004.e1/rank-", lost_rank, "-of-",
                                    hosts.size(), ".journal")));
  EXPECT_THAT(Train(folder.path(), {.hosts = hosts, .overrides = Journalled(), .until = 8}),
              Each(absl::OkStatus()));
  EXPECT_EQ(Resumed(folder.path()), 7);
  EXPECT_EQ(LastFiles(folder.path(), 8), Straight(hosts, Journalled()));
  for (size_t host = 0; host < 2; ++host) {  // The checkpoint of step 8 has made it needless.
    EXPECT_THAT(Below(Disk(folder.path(), static_cast<int>(host))),
                Not(Contains(HasSubstr("journal/step-000000000004"))));
  }
}

INSTANTIATE_TEST_SUITE_P(Hosts, LostJournalTest,
                         ::testing::Values(LostHost{"rank0s", {0, 1}, 0},
                                           LostHost{"last", {0, 1}, 1},
                                           LostHost{"second_of_three", {0, 1, 2}, 1},
                                           LostHost{"two_ranks", {0, 0, 1, 1}, 1}),
                         [](const auto& test) { return std::string(test.param.name); });

// No checkpoint is saved between the two losses.
TEST(LocalJournalTest, ASecondHostMayBeLostBeforeTheNextCheckpoint) {
  const testing::TempFolder folder;
  const Training cut{.overrides = Journalled(), .until = 7, .ends = false};
  EXPECT_THAT(Train(folder.path(), cut), Each(absl::OkStatus()));
  EXPECT_THAT(Records(folder.path(), "journal_alone"), IsEmpty());
  for (const int host : {0, 1}) {  // The checkpoint itself is in the tier behind.
    const std::string step = checkpoint::StepId{1, 4}.DirectoryName();
    std::filesystem::copy(absl::StrCat(Disk(folder.path(), host), "/", step),
                          absl::StrCat(Shared(folder.path()), "/", step),
                          std::filesystem::copy_options::recursive |
                              std::filesystem::copy_options::overwrite_existing);
  }
  for (const int lost : {1, 0}) {
    std::filesystem::remove_all(HostFolder(folder.path(), lost));
    EXPECT_THAT(Train(folder.path(), cut), Each(absl::OkStatus()));
    EXPECT_EQ(Resumed(folder.path()), 7) << "host " << lost << " was lost";
  }
  EXPECT_THAT(Train(folder.path(), {.overrides = Journalled(), .until = 8}),
              Each(absl::OkStatus()));
  EXPECT_EQ(LastFiles(folder.path(), 8), Straight({0, 1}, Journalled()));
}

TEST(LocalJournalTest, ADamagedJournalIsMendedByItsReplica) {
  const testing::TempFolder folder;
  const Training cut{.overrides = Journalled(), .until = 7, .ends = false};
  EXPECT_THAT(Train(folder.path(), cut), Each(absl::OkStatus()));
  const std::string damaged =
      absl::StrCat(Disk(folder.path(), 1), "/journal/step-000000000004.e1/rank-1-of-2.journal");
  const std::string whole = *ReadFile(damaged, 1 << 24);
  FlipAByte(damaged);  // In the gradient of step 7.
  EXPECT_THAT(Train(folder.path(), cut), Each(absl::OkStatus()));
  EXPECT_EQ(Resumed(folder.path()), 7);
  EXPECT_EQ(ReadFile(damaged, 1 << 24).value_or(""), whole);
}

TEST(LocalJournalTest, AnAsyncJournalLosesAtMostOneStepWithAHost) {
  const testing::TempFolder folder;
  EXPECT_THAT(Train(folder.path(), {.overrides = Journalled("async"), .until = 7, .ends = false}),
              Each(absl::OkStatus()));
  std::filesystem::remove_all(HostFolder(folder.path(), 1));
  EXPECT_THAT(Train(folder.path(), {.overrides = Journalled("async"), .until = 8}),
              Each(absl::OkStatus()));
  EXPECT_GE(Resumed(folder.path()), 6);
  EXPECT_EQ(LastFiles(folder.path(), 8), Straight({0, 1}, Journalled("async")));
}

TEST(LocalJournalTest, AJournalWithoutAReplicaIsAnAlarmAndCostsTheStepsOfTheLostHostAlone) {
  const testing::TempFolder folder;
  // A file stands where host 1 would keep the journal of host 0.
  const std::string memory = Memory(folder.path(), 1);
  ASSERT_TRUE(MakeDirectories(memory, 0700).ok());
  ASSERT_EQ(chmod(memory.c_str(), 0700), 0);
  ASSERT_TRUE(WriteFileAtomic(memory + "/journal", "").ok());
  EXPECT_THAT(Train(folder.path(), {.overrides = Journalled(), .until = 7, .ends = false}),
              Each(absl::OkStatus()));
  EXPECT_EQ(Records(folder.path(), "journal_alone").size(), 2U);  // Segments of steps 0 and 4.
  std::filesystem::remove_all(HostFolder(folder.path(), 0));
  EXPECT_THAT(Train(folder.path(), {.overrides = Journalled(), .until = 8}),
              Each(absl::OkStatus()));
  EXPECT_EQ(Resumed(folder.path()), 4);
}

}  // namespace
}  // namespace dtrain::local_journal_test
