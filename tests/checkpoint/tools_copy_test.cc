// `dtrain checkpoint copy`: a copy loads, goes on after an interruption, and harms nothing there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/file.h"
#include "base/log.h"
#include "checkpoint/commit/copy_checkpoint.h"
#include "checkpoint/restore/verify.h"
#include "checkpoint/storage/posix_storage.h"
#include "tests/checkpoint/tool_runs.h"

namespace dtrain::checkpoint::tools_copy_test {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kFolder[] = "/step-000000000200.e2";

class CopyTest : public ::testing::Test {
 protected:
  // Two attempts, the second of which resumed from the first.
  void SetUp() override {
    const auto storage = OpenPosixStorage(from_);
    const EpochRecord first = *BeginEpoch(**storage, "job", 2, std::nullopt);
    ASSERT_TRUE(SaveOnRanks(**storage, OptionsFor(first), 2, 100)[0].durable());
    const EpochRecord second = *BeginEpoch(**storage, "job", 2, StepId{1, 100});
    ASSERT_TRUE(SaveOnRanks(**storage, OptionsFor(second), 2, 200)[0].durable());
    fs::create_directory(to_root_);
  }
  // The copy of step 200 is the one that a run finds there, with every bit.
  void ExpectLoads(const std::string& path) {
    const auto storage = OpenPosixStorage(path);
    auto latest = FindLatest(**storage);
    ASSERT_TRUE(latest.ok()) << latest.status();
    EXPECT_EQ((*latest)->manifest().id, (StepId{2, 200}));
    for (const int rank : {0, 1}) {
      const absl::Status same = FakeState(200, rank, 2).Compare(**latest);
      EXPECT_TRUE(same.ok()) << same;
    }
  }

  const TemporaryFolder folder_{TemporaryFolder::Where::kMemory};
  const std::string from_ = folder_.path() + "/run/checkpoints";
  const std::string to_root_ = folder_.path() + "/copies";
  const std::string to_ = to_root_ + "/checkpoints";
};

TEST_F(CopyTest, ACopyHoldsTheSameFilesAndLoads) {
  const ToolRun run = RunTool(absl::StrCat("copy ", folder_.path(), "/run ", to_));
  EXPECT_EQ(run.code, 0) << run.output;
  EXPECT_THAT(
      run.output,
      AllOf(ContainsRegex("copied  state/rank-1-of-2.safetensors  [0-9.]+ kB\n"),
            ContainsRegex("copied: 6 files, [0-9.]+ kB, every byte verified, "),
            HasSubstr(absl::StrCat("A run with --run-dir ", to_root_, " goes on from it"))));
  EXPECT_EQ(Snapshot(to_ + kFolder), Snapshot(from_ + kFolder));
  EXPECT_EQ(Snapshot(to_ + "/epochs"), Snapshot(from_ + "/epochs"));
  EXPECT_EQ(*ReadFile(to_ + "/latest"), "step-000000000200.e2\n");
  struct stat info {};
  ASSERT_EQ(stat((to_ + kFolder + "/state/rank-0-of-2.safetensors").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0600U);
  ExpectLoads(to_);
  EXPECT_EQ(RunTool(absl::StrCat("diff ", from_, " ", to_)).code, 0);
}

TEST_F(CopyTest, AnOlderCheckpointTakesItsOwnAttemptAlone) {
  const Json json =
      ToolJson(absl::StrCat("copy --name step-000000000100.e1 ", from_, " ", to_root_, "/old"));
  EXPECT_EQ(json["epoch_records"], 1);
  EXPECT_EQ(json["was_there"], false);
  EXPECT_FALSE(FileExists(to_root_ + "/old/epochs/E00000002"));
  EXPECT_EQ(RunTool(absl::StrCat("list ", to_root_, "/old")).code, 0);
}

TEST_F(CopyTest, AnInterruptedCopyGoesOnAndTheManifestIsLast) {
  ASSERT_EQ(RunTool(absl::StrCat("copy ", from_, " ", to_)).code, 0);
  // An interruption leaves this: one file is whole, one cut, and the others are still to come.
  fs::remove(to_ + kFolder + "/MANIFEST.json");
  fs::remove(to_ + kFolder + "/state/rank-1-of-2.safetensors");
  fs::resize_file(to_ + kFolder + "/state/rank-0-of-2.safetensors", 100);
  fs::remove(to_ + "/latest");
  const auto whole = fs::last_write_time(to_ + kFolder + "/model/config.json");
  const ToolRun run = RunTool(absl::StrCat("copy ", from_, " ", to_));
  EXPECT_EQ(run.code, 0) << run.output;
  EXPECT_THAT(run.output, AllOf(HasSubstr("is there  model/config.json"),
                                HasSubstr("copied  state/rank-0-of-2.safetensors"),
                                HasSubstr("copied  state/rank-1-of-2.safetensors")));
  EXPECT_EQ(fs::last_write_time(to_ + kFolder + "/model/config.json"), whole);
  EXPECT_EQ(Snapshot(to_ + kFolder), Snapshot(from_ + kFolder));
  ExpectLoads(to_);
  const Json again = ToolJson(absl::StrCat("copy ", from_, " ", to_));
  EXPECT_EQ(again["was_there"], true);
  EXPECT_EQ(again["files_that_were_there"], again["files"]);
}

// A rank may fail while a copy is under way.
TEST_F(CopyTest, ACopyThatIsGivenUpEndsBeforeItsNextBlockAndGoesOnLater) {
  const auto from = OpenPosixStorage(from_);
  const auto to = OpenPosixStorage(to_);
  std::atomic<bool> gives_up{false};
  int copied = 0;
  const auto note = [&](const ManifestFile& /*file*/, bool /*was_there*/) {
    ++copied;
    gives_up = true;
  };
  const auto cut = CopyCheckpoint(**from, StepId{2, 200}, **to, note, &gives_up);
  EXPECT_EQ(cut.status().code(), absl::StatusCode::kCancelled) << cut.status();
  EXPECT_EQ(copied, 1);
  EXPECT_FALSE(FileExists(to_ + kFolder + "/MANIFEST.json"));
  gives_up = false;
  const auto whole = CopyCheckpoint(**from, StepId{2, 200}, **to, note);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->files_kept, 1U);
  ExpectLoads(to_);
}

TEST_F(CopyTest, ADamagedFileIsNamedAndNoManifestIsWritten) {
  const std::string file = from_ + kFolder + "/state/rank-1-of-2.safetensors";
  FlipBit(file, -1);
  ExpectRefused(absl::StrCat("copy ", from_, " ", to_, " --json"), 64,
                {file, "is damaged: bytes 0 to"});
  EXPECT_FALSE(FileExists(to_ + kFolder + "/MANIFEST.json"));
  EXPECT_FALSE(FileExists(to_ + kFolder + "/state/rank-1-of-2.safetensors"));
  FlipBit(file, -1);
  EXPECT_EQ(RunTool(absl::StrCat("copy ", from_, " ", to_)).code, 0);
  // A copy that was damaged later is named, not replaced.
  FlipBit(to_ + kFolder + "/model/config.json", 0);
  ExpectRefused(absl::StrCat("copy ", from_, " ", to_), 64,
                {to_ + kFolder, "was copied before; remove it", "config.json is damaged"});
}

TEST_F(CopyTest, AFolderOfAnotherRunIsLeftAlone) {
  const RunFolder other = BeginRun(to_, "other");
  ASSERT_TRUE(SaveOnRanks(*other.storage, OptionsFor(other.epoch), 2, 7)[0].durable());
  const auto before = Snapshot(to_);
  ExpectRefused(absl::StrCat("copy ", from_, " ", to_), 64,
                {to_ + "/epochs/E00000001 is the record of another run, other"});
  fs::remove_all(to_ + "/epochs");
  ExpectRefused(absl::StrCat("copy ", from_, " ", to_), 64,
                {"step-000000000007.e1 is of another run, other; this one is job"});
  EXPECT_EQ(Snapshot(to_ + "/step-000000000007.e1").size(),
            Snapshot(to_).size() - 2);  // Its folder and `latest`.
  EXPECT_EQ(before.at("latest"), *ReadFile(to_ + "/latest"));
}

TEST_F(CopyTest, ACheckpointThatARunThereWouldNotLoadIsRefused) {
  ASSERT_EQ(RunTool(absl::StrCat("copy ", from_, " ", to_)).code, 0);
  {
    const auto storage = OpenPosixStorage(to_);
    ASSERT_TRUE(BeginEpoch(**storage, "job", 2, std::nullopt).ok());  // A fresh start there.
  }
  fs::remove_all(to_ + kFolder);
  const auto before = Snapshot(to_);
  ExpectRefused(absl::StrCat("copy ", from_, " ", to_), 64,
                {to_ + "/epochs/E00000003 is of a newer attempt, which did not resume from step "
                       "200 of epoch 2"});
  EXPECT_EQ(Snapshot(to_), before);
}

TEST_F(CopyTest, ARunDirectoryGetsItInItsFolderOfCheckpoints) {
  const std::string run = to_root_ + "/run";
  fs::create_directory(run);
  DT_CHECK_OK(WriteFileAtomic(run + "/config.json", "{\"checkpoint\": {\"dir\": \"\"}}"));
  EXPECT_EQ(RunTool(absl::StrCat("copy ", from_, " ", run)).code, 0);
  ExpectLoads(run + "/checkpoints");
}

TEST_F(CopyTest, LinksAndWrongNamesAreRefusedAndNothingIsCreated) {
  const std::string file = from_ + kFolder + "/model/config.json";
  fs::remove(file);
  fs::create_symlink("/etc/passwd", file);
  ExpectRefused(absl::StrCat("copy ", from_, " ", to_, " --json"), 64,
                {file, "is a symbolic link"});
  EXPECT_FALSE(FileExists(to_ + kFolder + "/MANIFEST.json"));
  ExpectRefused(absl::StrCat("copy ", from_, " ", to_root_, "/new --name step-000000000300.e1"), 64,
                {"step-000000000300.e1", "No such file"});
  ExpectRefused(absl::StrCat("copy ", folder_.path(), "/none ", to_root_, "/new"), 64,
                {"is not a folder"});
  EXPECT_FALSE(FileExists(to_root_ + "/new"));
}

TEST_F(CopyTest, AFullDiskIsNamedWithWhatIsNeededAndWhatIsFree) {
  const SmallDisk disk(16 << 10);
  if (!disk.mounted()) {
    GTEST_SKIP() << "mounting a tmpfs is not permitted here: run as root to test a full disk";
  }
  const RunFolder big = BeginRun(folder_.path() + "/big");
  ASSERT_TRUE(SaveOnRanks(*big.storage, OptionsFor(big.epoch), 1, 3, 64)[0].durable());
  ExpectRefused(absl::StrCat("copy ", folder_.path(), "/big ", disk.path(), "/to"), 75,
                {disk.path() + "/to/step-000000000003.e1 takes", "(16384 bytes) are free there"});
  EXPECT_THAT(Snapshot(disk.path()), IsEmpty());
}

TEST_F(CopyTest, APlaceThatMayNotBeWrittenIsNamed) {
  fs::permissions(folder_.path(), fs::perms(0755));
  ExpectRefused(absl::StrCat("copy ", from_, " ", to_), 64, {to_, "Permission denied"}, 65534);
  EXPECT_THAT(Snapshot(to_root_), IsEmpty());
}

}  // namespace
}  // namespace dtrain::checkpoint::tools_copy_test
