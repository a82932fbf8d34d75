// checkpoint.local_dir and checkpoint.replicas: each host keeps its own part of a checkpoint and a
// replica of another host's; a run that has lost a host goes on at the newest durable step, with
// the bits of one that has lost nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "checkpoint/restore/reader.h"
#include "checkpoint/restore/verify.h"
#include "checkpoint/storage/posix_storage.h"
#include "comm/group.h"
#include "dtrain/checkpointer.h"
#include "dtrain/engine.h"
#include "runtime/checkpoint/tiers/checkpoint_tiers.h"
#include "tests/runtime/testing/chain_for_tests.h"
#include "tests/runtime/testing/job_for_tests.h"

namespace dtrain::local_tier_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::RankContext;
using testing::Tokens;

struct Training {
  std::vector<int> hosts = {0, 1};  // By rank.
  std::vector<std::string> overrides = {"checkpoint.replicas=1"};
  int64_t until = 6;
  bool ends = true;  // False: the ranks are gone behind the last step, as if they were killed.
};

std::string HostFolder(const std::string& folder, int host) {
  return absl::StrCat(folder, "/host-", host);
}

std::string Disk(const std::string& folder, int host) {
  return HostFolder(folder, host) + "/disk/test";  // The run's id is "test".
}

std::string Memory(const std::string& folder, int host) {
  return HostFolder(folder, host) + "/memory/dtrain-replicas-test";
}

std::string Shared(const std::string& folder) { return folder + "/run/checkpoints"; }

absl::Status TrainRank(RankContext& context, const std::string& folder, const Training& training) {
  at::set_num_threads(1);
  const std::string host = HostFolder(folder, training.hosts[static_cast<size_t>(context.rank)]);
  std::vector<std::string> overrides = {
      "train_batch_size=36",
      absl::StrCat("train_micro_batch_size_per_gpu=", 36 / context.size),
      "deterministic=true",
      "checkpoint.interval=2",
      "checkpoint.keep=2",
      absl::StrCat("checkpoint.local_dir=", host, "/disk"),
      absl::StrCat("checkpoint.replica_dir=", host, "/memory")};
  overrides.insert(overrides.end(), training.overrides.begin(), training.overrides.end());
  DT_ASSIGN_OR_RETURN(
      auto job,
      testing::MakeTestJob({.run_dir = folder + "/run", .overrides = overrides, .rank = &context}));
  at::manual_seed(5);
  testing::Chain model;
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
  DT_ASSIGN_OR_RETURN(auto checkpoints, Checkpointer::Open(*job));
  checkpoints->Track("engine", *engine);
  DT_RETURN_IF_ERROR(checkpoints->RestoreLatest());
  job->metrics().Log("own/resumed", static_cast<double>(engine->step()));
  Tokens source{engine->step(), job->rank(), job->world_size(), 1};
  while (engine->step() < training.until) {
    DT_RETURN_IF_ERROR(engine
                           ->Step(source,
                                  [&](const at::Tensor& tokens) {
                                    return Loss(model.Loss(tokens), tokens.size(0));
                                  })
                           .status());
    DT_RETURN_IF_ERROR(checkpoints->MaybeSave(engine->step()));
  }
  // All are killed at once, when what follows the last commit is done too.
  return training.ends ? checkpoints->Finish()
                       : job->group().Barrier(Deadline::After(absl::Seconds(30)));
}

std::vector<absl::Status> Train(const std::string& folder, const Training& training) {
  std::vector<absl::Status> all;
  const int ranks = static_cast<int>(training.hosts.size());
  for (const auto& result : testing::RunRanks({.size = ranks}, [&](RankContext& context) {
         return TrainRank(context, folder, training);
       })) {
    all.push_back(result.status);
  }
  return all;
}

// Every file of the newest checkpoint in the shared folder, but for its manifest.
std::map<std::string, std::string> LastFiles(const std::string& folder, int64_t step) {
  std::map<std::string, std::string> files;
  const auto storage = *checkpoint::OpenPosixStorage(Shared(folder));
  const std::vector<checkpoint::StepId> ids = *checkpoint::ListCheckpoints(*storage);
  for (const checkpoint::StepId& id : ids) {
    const auto opened = checkpoint::Checkpoint::Open(*storage, id, checkpoint::Verify::kHashes);
    EXPECT_TRUE(opened.ok()) << opened.status();
    for (size_t i = 0; opened.ok() && id.step == step && i < (*opened)->manifest().files.size();
         ++i) {
      const std::string& path = (*opened)->manifest().files[i].path;
      files[path] = *ReadFile(absl::StrCat(Shared(folder), "/", id.DirectoryName(), "/", path));
    }
  }
  return files;
}

// Trains 8 steps without a loss, and gives the files that are left.
std::map<std::string, std::string> Straight(const std::vector<int>& hosts,
                                            const std::vector<std::string>& overrides = {
                                                "checkpoint.replicas=1"}) {
  const testing::TempFolder folder;
  EXPECT_THAT(Train(folder.path(), {.hosts = hosts, .overrides = overrides, .until = 8}),
              Each(absl::OkStatus()));
  std::map<std::string, std::string> files = LastFiles(folder.path(), 8);
  EXPECT_FALSE(files.empty());
  return files;
}

std::vector<Json> Records(const std::string& folder, absl::string_view text) {
  std::vector<Json> found;
  const std::string all = ReadFile(folder + "/run/metrics/rank-0.jsonl", 1 << 24).value_or("");
  for (const absl::string_view line : absl::StrSplit(all, '\n', absl::SkipEmpty())) {
    if (const auto record = ParseJson(line, "metrics");
        record.ok() && absl::StrContains(line, text)) {
      found.push_back(*record);
    }
  }
  return found;
}

int64_t Resumed(const std::string& folder) {
  const std::vector<Json> records = Records(folder, "own/resumed");
  return records.empty() ? -1 : records.back()["m"]["own/resumed"].get<int64_t>();
}

// Names below a folder, those of folders too.
std::vector<std::string> Below(const std::string& folder) {
  std::vector<std::string> names;
  if (std::filesystem::exists(folder)) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      names.push_back(entry.path().string().substr(folder.size() + 1));
    }
  }
  return names;
}

void LoseSharedStep(const std::string& folder, int64_t step) {
  for (const int64_t epoch : {1, 2}) {
    std::filesystem::remove_all(
        absl::StrCat(Shared(folder), "/", checkpoint::StepId{epoch, step}.DirectoryName()));
  }
}

// The path of the one file whose name ends so.
std::string FileBelow(const std::string& folder, absl::string_view end) {
  std::string found;
  for (const std::string& name : Below(folder)) {
    if (absl::EndsWith(name, end)) {
      EXPECT_EQ(found, "") << name;
      found = absl::StrCat(folder, "/", name);
    }
  }
  EXPECT_NE(found, "") << folder << " has no " << end;
  return found;
}

void FlipAByte(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto at = static_cast<std::streamoff>(std::filesystem::file_size(path) - 5);
  file.seekg(at);
  const int byte = file.get();
  file.seekp(at);
  file.put(static_cast<char>(byte ^ 0x10));
  ASSERT_TRUE(file.good()) << path;
}

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

struct LostHost {
  const char* name;
  std::vector<int> hosts;
  int lost;
};

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

TEST(LocalTierTest, AnAsyncJournalLosesAtMostOneStepWithAHost) {
  const testing::TempFolder folder;
  EXPECT_THAT(Train(folder.path(), {.overrides = Journalled("async"), .until = 7, .ends = false}),
              Each(absl::OkStatus()));
  std::filesystem::remove_all(HostFolder(folder.path(), 1));
  EXPECT_THAT(Train(folder.path(), {.overrides = Journalled("async"), .until = 8}),
              Each(absl::OkStatus()));
  EXPECT_GE(Resumed(folder.path()), 6);
  EXPECT_EQ(LastFiles(folder.path(), 8), Straight({0, 1}, Journalled("async")));
}

TEST(LocalTierTest, AJournalWithoutAReplicaIsAnAlarmAndCostsTheStepsOfTheLostHostAlone) {
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
