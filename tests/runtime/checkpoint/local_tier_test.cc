// checkpoint.local_dir and checkpoint.replicas: each host keeps its own part of a checkpoint and a
// replica of another host's; a run that has lost a host goes on at the newest durable step, with
// the bits of one that has lost nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/restore/verify.h"
#include "checkpoint/storage/posix_storage.h"
#include "tests/runtime/checkpoint/hosts_training.h"
#include "tests/runtime/testing/job_for_tests.h"

namespace dtrain::local_tier_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using namespace testing::hosts;  // NOLINT(google-build-using-namespace)

TEST(LocalTierTest, EachHostHasItsOwnPartAndTheSharedFolderAll) {
  const testing::TempFolder folder;
  EXPECT_THAT(Train(folder.path(), {.overrides = {}}), Each(absl::OkStatus()));
  for (const int host : {0, 1}) {
    const std::vector<std::string> names = Below(Disk(folder.path(), host));
    EXPECT_THAT(names, Contains("step-000000000006.e1/MANIFEST.json"));
    EXPECT_THAT(names, Contains("epochs/E00000001"));
    EXPECT_THAT(names, Contains(absl::StrCat("step-000000000006.e1/state/rank-", host,
                                             "-of-2.safetensors")));
    EXPECT_THAT(names, Not(Contains(absl::StrCat("step-000000000006.e1/state/rank-", 1 - host,
                                                 "-of-2.safetensors"))));
    EXPECT_THAT(names, Not(Contains(HasSubstr("step-000000000002"))));  // checkpoint.keep.
  }
  EXPECT_FALSE(LastFiles(folder.path(), 6).empty());
  for (const Json& copied : Records(folder.path(), "remote_copy")) {  // Host 1 has sent its own.
    EXPECT_GE(copied["files_by_hosts"].get<int>(), 1);
  }
  const auto storage = *checkpoint::OpenPosixStorage(Shared(folder.path()));
  const auto manifest = checkpoint::ReadManifest(*storage, {1, 6});
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  for (const Json& rank : manifest->rank_state) {
    EXPECT_NE(rank.value("host", ""), "");
  }
}

TEST(LocalTierTest, ReplicasHoldTheNewestCheckpointAloneAndAreRemovedAtTheEnd) {
  const testing::TempFolder folder;
  EXPECT_THAT(Train(folder.path(), {.ends = false}), Each(absl::OkStatus()));
  for (const int host : {0, 1}) {
    EXPECT_THAT(Below(Memory(folder.path(), host)),
                AllOf(Contains(absl::StrCat("step-000000000006.e1/state/rank-", 1 - host,
                                            "-of-2.safetensors")),
                      Not(Contains(HasSubstr("step-000000000004")))));
    struct stat about {};
    ASSERT_EQ(stat(Memory(folder.path(), host).c_str(), &about), 0);
    EXPECT_EQ(about.st_mode & 0777, 0700U);
  }
  EXPECT_THAT(Records(folder.path(), "replicas_lacking"), IsEmpty());
  EXPECT_THAT(Train(folder.path(), {.until = 8}), Each(absl::OkStatus()));
  EXPECT_EQ(Resumed(folder.path()), 6);
  for (const int host : {0, 1}) {
    EXPECT_FALSE(std::filesystem::exists(Memory(folder.path(), host)));
  }
}

class LostHostTest : public ::testing::TestWithParam<LostHost> {};

TEST_P(LostHostTest, TheRunGoesOnAtTheNewestDurableStepWithTheSameBits) {
  const auto [name, hosts, lost] = GetParam();
  const testing::TempFolder folder;
  EXPECT_THAT(Train(folder.path(), {.hosts = hosts, .ends = false}), Each(absl::OkStatus()));
  LoseSharedStep(folder.path(), 6);
  std::filesystem::remove_all(HostFolder(folder.path(), lost));
  EXPECT_THAT(Train(folder.path(), {.hosts = hosts, .until = 8}), Each(absl::OkStatus()));
  EXPECT_EQ(Resumed(folder.path()), 6);
  EXPECT_EQ(LastFiles(folder.path(), 8), Straight(hosts));
}

INSTANTIATE_TEST_SUITE_P(Hosts, LostHostTest,
                         ::testing::Values(LostHost{"rank0s", {0, 1}, 0},
                                           LostHost{"last", {0, 1}, 1},
                                           LostHost{"first_of_three", {0, 1, 2}, 0},
                                           LostHost{"second_of_three", {0, 1, 2}, 1},
                                           LostHost{"two_ranks", {0, 0, 1, 1}, 1}),
                         [](const auto& test) { return std::string(test.param.name); });

// A run of two hosts without an end, whose newest step only they have; the one before is in the
// shared folder.
void PrepareCut(const std::string& folder,
                std::vector<std::string> overrides = {"checkpoint.replicas=1"}) {
  ASSERT_THAT(Train(folder, {.overrides = overrides, .until = 4}), Each(absl::OkStatus()));
  ASSERT_THAT(Train(folder, {.overrides = overrides, .until = 6, .ends = false}),
              Each(absl::OkStatus()));
  LoseSharedStep(folder, 6);
}

TEST(LocalTierTest, WithoutReplicasALostHostCostsTheStepsThatOnlyItHad) {
  const testing::TempFolder folder;
  ASSERT_NO_FATAL_FAILURE(PrepareCut(folder.path(), {}));
  std::filesystem::remove_all(HostFolder(folder.path(), 1));
  EXPECT_THAT(Train(folder.path(), {.overrides = {}, .until = 8}), Each(absl::OkStatus()));
  EXPECT_EQ(Resumed(folder.path()), 4);
  EXPECT_EQ(LastFiles(folder.path(), 8), Straight({0, 1}, {}));
}

TEST(LocalTierTest, ADamagedReplicaIsNoticedAndTheCheckpointBeforeIsUsed) {
  const testing::TempFolder folder;
  ASSERT_NO_FATAL_FAILURE(PrepareCut(folder.path()));
  std::filesystem::remove_all(HostFolder(folder.path(), 1));
  FlipAByte(FileBelow(Memory(folder.path(), 0), "state/rank-1-of-2.safetensors"));
  EXPECT_THAT(Train(folder.path(), {.until = 8}), Each(absl::OkStatus()));
  EXPECT_EQ(Resumed(folder.path()), 4);
  EXPECT_EQ(LastFiles(folder.path(), 8), Straight({0, 1}));
}

TEST(LocalTierTest, ADamagedFileIsReplacedByItsReplica) {
  const testing::TempFolder folder;
  ASSERT_NO_FATAL_FAILURE(PrepareCut(folder.path()));
  const std::string damaged =
      absl::StrCat(Disk(folder.path(), 1), "/step-000000000006.e2/state/rank-1-of-2.safetensors");
  FlipAByte(damaged);
  EXPECT_THAT(Train(folder.path(), {.until = 8}), Each(absl::OkStatus()));
  EXPECT_EQ(Resumed(folder.path()), 6);
  EXPECT_FALSE(std::filesystem::exists(damaged));
  EXPECT_EQ(LastFiles(folder.path(), 8), Straight({0, 1}));
}

// Several ranks read them and find the damage at once.
TEST(LocalTierTest, AllDamagedFilesOfAHostAreReplacedByTheirReplicas) {
  const testing::TempFolder folder;
  ASSERT_NO_FATAL_FAILURE(PrepareCut(folder.path()));
  std::vector<std::string> damaged;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(
           absl::StrCat(Disk(folder.path(), 1), "/step-000000000006.e2"))) {
    if (entry.path().extension() == ".safetensors") {
      damaged.push_back(entry.path().string());
    }
  }
  ASSERT_GE(damaged.size(), 2U) << "of weights and of states";
  for (const std::string& path : damaged) {
    FlipAByte(path);
  }
  EXPECT_THAT(Train(folder.path(), {.until = 8}), Each(absl::OkStatus()));
  EXPECT_EQ(Resumed(folder.path()), 6);
  for (const std::string& path : damaged) {
    EXPECT_FALSE(std::filesystem::exists(path)) << path;
  }
  EXPECT_EQ(LastFiles(folder.path(), 8), Straight({0, 1}));
}

TEST(LocalTierTest, AFileThatWasCutIsReplacedByItsReplica) {
  const testing::TempFolder folder;
  ASSERT_NO_FATAL_FAILURE(PrepareCut(folder.path()));
  const std::string cut =
      absl::StrCat(Disk(folder.path(), 1), "/step-000000000006.e2/state/rank-1-of-2.safetensors");
  std::filesystem::resize_file(cut, std::filesystem::file_size(cut) / 2);
  EXPECT_THAT(Train(folder.path(), {.until = 8}), Each(absl::OkStatus()));
  EXPECT_EQ(Resumed(folder.path()), 6);
  EXPECT_EQ(LastFiles(folder.path(), 8), Straight({0, 1}));
}

TEST(LocalTierTest, ADamagedManifestIsReplacedByThatOfAnotherHost) {
  const testing::TempFolder folder;
  ASSERT_NO_FATAL_FAILURE(PrepareCut(folder.path()));
  FlipAByte(Disk(folder.path(), 0) + "/step-000000000006.e2/MANIFEST.json");
  EXPECT_THAT(Train(folder.path(), {.until = 8}), Each(absl::OkStatus()));
  EXPECT_EQ(Resumed(folder.path()), 6);
}

// Every host is lost, and its shared copy is the newest that is left.
TEST(LocalTierTest, NewHostsGoOnFromTheSharedFolder) {
  const testing::TempFolder folder;
  EXPECT_THAT(Train(folder.path(), {}), Each(absl::OkStatus()));
  for (const int host : {0, 1}) {
    std::filesystem::remove_all(HostFolder(folder.path(), host));
  }
  EXPECT_THAT(Train(folder.path(), {.hosts = {2, 3}, .until = 8}), Each(absl::OkStatus()));
  EXPECT_EQ(Resumed(folder.path()), 6);
  EXPECT_EQ(LastFiles(folder.path(), 8), Straight({0, 1}));
}

TEST(LocalTierTest, SavesBesideTrainingHaveReplicasToo) {
  const testing::TempFolder folder;
  const std::vector<std::string> overrides = {"checkpoint.replicas=1", "checkpoint.async=true"};
  EXPECT_THAT(Train(folder.path(), {.overrides = overrides, .ends = false}),
              Each(absl::OkStatus()));
  std::filesystem::remove_all(Shared(folder.path()));
  std::filesystem::remove_all(HostFolder(folder.path(), 0));
  EXPECT_THAT(Train(folder.path(), {.overrides = overrides, .until = 8}), Each(absl::OkStatus()));
  EXPECT_GE(Resumed(folder.path()), 2);  // A save that came due beside another one was skipped.
  EXPECT_EQ(LastFiles(folder.path(), 8), Straight({0, 1}));
}

TEST(LocalTierTest, AReplicaThatCannotBeWrittenIsAnAlarmAndNoFailedSave) {
  const testing::TempFolder folder;
  // A file stands where the replicas of the first save would be.
  const std::string memory = Memory(folder.path(), 0);
  ASSERT_TRUE(MakeDirectories(memory, 0700).ok());
  ASSERT_EQ(chmod(memory.c_str(), 0700), 0);
  ASSERT_TRUE(WriteFileAtomic(memory + "/step-000000000002.e1", "").ok());
  EXPECT_THAT(Train(folder.path(), {.ends = false}), Each(absl::OkStatus()));
  const std::vector<Json> lacking = Records(folder.path(), "replicas_lacking");
  ASSERT_EQ(lacking.size(), 1U);
  EXPECT_EQ(lacking[0]["step"], 2);
  EXPECT_THAT(lacking[0]["error"].get<std::string>(), HasSubstr("files have no replica"));
  for (const Json& saved : Records(folder.path(), R"("kind":"ckpt")")) {
    EXPECT_TRUE(saved.value("durable", false)) << saved;
  }
}

TEST(LocalTierTest, RanksOfOneHostHaveNoPeer) {
  const testing::TempFolder folder;
  EXPECT_THAT(Train(folder.path(), {.hosts = {0, 0}, .ends = false}), Each(absl::OkStatus()));
  EXPECT_THAT(Below(Memory(folder.path(), 0)), IsEmpty());
  EXPECT_THAT(Train(folder.path(), {.hosts = {0, 0}, .until = 8}), Each(absl::OkStatus()));
  EXPECT_EQ(Resumed(folder.path()), 6);
}

TEST(LocalTierTest, TooLittleMemoryForReplicasIsRefusedWithBothFigures) {
  const testing::TempFolder folder;
  for (const absl::Status& status :
       Train(folder.path(),
             {.overrides = {"checkpoint.replicas=1", "checkpoint.replica_memory=1000"}})) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("checkpoint.replica_memory allows 1.0 kB (1000 bytes)"),
                      ::testing::ContainsRegex("two snapshots of another host in memory, .* "
                                               "\\([0-9]+ bytes\\)")));
  }
}

TEST(LocalTierTest, AFolderThatCannotBeUsedIsNamedOnEveryRank) {
  const testing::TempFolder folder;
  const std::vector<absl::Status> ended =
      Train(folder.path(), {.overrides = {"checkpoint.local_dir=/proc/no/such"}});
  for (const absl::Status& status : ended) {
    EXPECT_THAT(status.message(), HasSubstr("checkpoint.local_dir: "));
  }
}

}  // namespace
}  // namespace dtrain::local_tier_test
