// Damage to committed checkpoints is found and named, and the previous checkpoint is used.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/file.h"
#include "base/log.h"
#include "checkpoint/storage/posix_storage.h"
#include "tests/checkpoint/testing.h"

namespace dtrain::checkpoint::corruption_test {
namespace {

using ::testing::HasSubstr;

// Two committed checkpoints of two ranks, steps 1 and 2, in a fresh folder.
class CorruptionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kError);
    auto storage = OpenPosixStorage(folder_.path());
    DT_CHECK_OK(storage.status());
    storage_ = *std::move(storage);
    const auto epoch = BeginEpoch(*storage_, "job", kWorldSize, std::nullopt);
    DT_CHECK_OK(epoch.status());
    for (const int64_t step : {1, 2}) {
      DT_CHECK(SaveOnRanks(*storage_, OptionsFor(*epoch), kWorldSize, step)[0].durable());
    }
  }

  std::string Full(const std::string& file) const {
    return absl::StrCat(folder_.path(), "/step-000000000002.e1/", file);
  }

  void Flip(const std::string& path, uint64_t offset, uint8_t mask) {
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    uint8_t byte = 0;
    ASSERT_EQ(pread(fd, &byte, 1, static_cast<off_t>(offset)), 1);
    byte ^= mask;
    ASSERT_EQ(pwrite(fd, &byte, 1, static_cast<off_t>(offset)), 1);
    close(fd);
  }

  // Step 2 is refused with a message that names `file`; step 1 is loaded instead.
  void ExpectFallsBack(const std::string& file) {
    const auto damaged = Checkpoint::Open(*storage_, {1, 2}, Verify::kHashes);
    ASSERT_FALSE(damaged.ok());
    EXPECT_THAT(std::string(damaged.status().message()), HasSubstr(Full(file)));
    auto latest = FindLatest(*storage_);
    ASSERT_TRUE(latest.ok()) << latest.status();
    EXPECT_EQ((*latest)->manifest().id.step, 1);
    for (int rank = 0; rank < kWorldSize; ++rank) {
      const absl::Status same = FakeState(1, rank, kWorldSize).Compare(**latest);
      EXPECT_TRUE(same.ok()) << same;
    }
  }

  static constexpr int kWorldSize = 2;
  const std::vector<std::string> files_ = {"MANIFEST.json",
                                           "model/config.json",
                                           "model/model-00001-of-00002.safetensors",
                                           "model/model-00002-of-00002.safetensors",
                                           "model/model.safetensors.index.json",
                                           "state/rank-0-of-2.safetensors",
                                           "state/rank-1-of-2.safetensors"};
  const TemporaryFolder folder_{TemporaryFolder::Where::kMemory};
  std::unique_ptr<Storage> storage_;
};

TEST_F(CorruptionTest, OneFlippedBitInAnyFileIsFoundAndNamed) {
  SplitMix64 random(20260);
  for (const std::string& file : files_) {
    const uint64_t bytes = std::filesystem::file_size(Full(file));
    for (int i = 0; i < 24; ++i) {
      // First both ends of the file, then random places.
      const uint64_t offset = i == 0 ? 0 : i == 1 ? bytes - 1 : random.Below(bytes);
      const auto mask = static_cast<uint8_t>(1U << random.Below(8));
      SCOPED_TRACE(absl::StrCat(file, " byte ", offset, " mask ", mask));
      Flip(Full(file), offset, mask);
      ExpectFallsBack(file);
      Flip(Full(file), offset, mask);
      if (HasFailure()) {
        return;
      }
    }
  }
  EXPECT_EQ((*FindLatest(*storage_))->manifest().id.step, 2) << "undone damage must load again";
}

TEST_F(CorruptionTest, ATruncatedFileIsFoundAndNamed) {
  for (const std::string& file : files_) {
    const auto content = ReadFile(Full(file));
    ASSERT_TRUE(content.ok());
    for (const size_t bytes : {size_t{0}, size_t{1}, content->size() / 2, content->size() - 1}) {
      SCOPED_TRACE(absl::StrCat(file, " cut to ", bytes));
      ASSERT_EQ(truncate(Full(file).c_str(), static_cast<off_t>(bytes)), 0);
      ExpectFallsBack(file);
    }
    ASSERT_TRUE(WriteFileAtomic(Full(file), *content).ok());
  }
}

TEST_F(CorruptionTest, AFileThatGrewIsFoundAndNamed) {
  for (const std::string& file : files_) {
    const auto content = ReadFile(Full(file));
    ASSERT_TRUE(content.ok());
    ASSERT_TRUE(WriteFileAtomic(Full(file), *content + "x").ok());
    ExpectFallsBack(file);
    ASSERT_TRUE(WriteFileAtomic(Full(file), *content).ok());
  }
}

TEST_F(CorruptionTest, AMissingFileIsFoundAndNamed) {
  for (const std::string& file : files_) {
    SCOPED_TRACE(file);
    const std::string aside = folder_.path() + "/aside";
    ASSERT_EQ(rename(Full(file).c_str(), aside.c_str()), 0);
    ExpectFallsBack(file);
    ASSERT_EQ(rename(aside.c_str(), Full(file).c_str()), 0);
  }
}

TEST_F(CorruptionTest, SwappedShardsAreFoundAndNamed) {
  for (const auto& [a, b] : {std::pair(files_[2], files_[3]), std::pair(files_[5], files_[6])}) {
    const std::string aside = folder_.path() + "/aside";
    ASSERT_EQ(rename(Full(a).c_str(), aside.c_str()), 0);
    ASSERT_EQ(rename(Full(b).c_str(), Full(a).c_str()), 0);
    ASSERT_EQ(rename(aside.c_str(), Full(b).c_str()), 0);
    ExpectFallsBack(a);
    ASSERT_EQ(rename(Full(a).c_str(), aside.c_str()), 0);
    ASSERT_EQ(rename(Full(b).c_str(), Full(a).c_str()), 0);
    ASSERT_EQ(rename(aside.c_str(), Full(b).c_str()), 0);
  }
}

TEST_F(CorruptionTest, ASymbolicLinkIsNotFollowed) {
  for (const std::string& file : {files_[2], files_[5], files_[0]}) {
    SCOPED_TRACE(file);
    const std::string aside = folder_.path() + "/aside";
    ASSERT_EQ(rename(Full(file).c_str(), aside.c_str()), 0);
    ASSERT_EQ(symlink(aside.c_str(), Full(file).c_str()), 0);
    ExpectFallsBack(file);
    ASSERT_EQ(rename(aside.c_str(), Full(file).c_str()), 0);
  }
  // A linked folder is not followed either.
  ASSERT_EQ(rename(Full("state").c_str(), (folder_.path() + "/aside").c_str()), 0);
  ASSERT_EQ(symlink("../aside", Full("state").c_str()), 0);
  ExpectFallsBack("state");
}

TEST_F(CorruptionTest, AFifoInThePlaceOfAFileDoesNotBlock) {
  ASSERT_EQ(unlink(Full(files_[5]).c_str()), 0);
  ASSERT_EQ(mkfifo(Full(files_[5]).c_str(), 0600), 0);
  ExpectFallsBack(files_[5]);
}

TEST_F(CorruptionTest, AFolderThatWasRenamedToAnotherStepIsRefused) {
  const std::string moved = folder_.path() + "/step-000000000009.e1";
  ASSERT_EQ(rename(Full("").c_str(), moved.c_str()), 0);
  const auto opened = Checkpoint::Open(*storage_, {1, 9}, Verify::kHashes);
  EXPECT_THAT(std::string(opened.status().message()), HasSubstr("is the manifest of step 2"));
  EXPECT_EQ((*FindLatest(*storage_))->manifest().id.step, 1);
}

TEST_F(CorruptionTest, TheHintIsNeverTrusted) {
  ASSERT_TRUE(WriteFileAtomic(folder_.path() + "/latest", "../../etc/passwd\n").ok());
  EXPECT_EQ((*FindLatest(*storage_))->manifest().id.step, 2);
}

TEST_F(CorruptionTest, ADamagedEpochRecordIsNamedAndTheCheckpointStillLoads) {
  const auto second = BeginEpoch(*storage_, "job", kWorldSize, StepId{1, 2});
  ASSERT_TRUE(second.ok());
  const std::string path = absl::StrCat(folder_.path(), "/", EpochPath(2));
  const uint64_t bytes = std::filesystem::file_size(path);
  for (uint64_t offset = 0; offset < bytes; offset += 3) {
    Flip(path, offset, 0x10);
    const auto record = ReadEpoch(*storage_, 2);
    ASSERT_FALSE(record.ok()) << offset;
    EXPECT_THAT(std::string(record.status().message()), HasSubstr(path));
    auto latest = FindLatest(*storage_);
    ASSERT_TRUE(latest.ok()) << latest.status();
    EXPECT_EQ((*latest)->manifest().id, (StepId{1, 2}));
    Flip(path, offset, 0x10);
  }
}

TEST_F(CorruptionTest, DamageThatAppearsAfterTheCheckIsFoundWhileReading) {
  auto latest = FindLatest(*storage_);
  ASSERT_TRUE(latest.ok());
  Flip(Full(files_[5]), std::filesystem::file_size(Full(files_[5])) - 20, 1);
  const absl::Status same = FakeState(2, 0, kWorldSize).Compare(**latest);
  EXPECT_EQ(same.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(same.message()), HasSubstr(Full(files_[5])));
  EXPECT_THAT(std::string(same.message()), HasSubstr("CRC-32C"));
}

TEST_F(CorruptionTest, PathsThatLeaveTheFolderAreRefused) {
  for (const char* path : {"../x", "a/../../x", "/etc/passwd", "a//b", "", ".", "a/."}) {
    EXPECT_FALSE(storage_->OpenFile(path).ok()) << path;
    EXPECT_FALSE(storage_->CreateFile(path, 0, Access::kOwner).ok()) << path;
  }
}

// Starts of a further attempt after checkpoints were lost.
class LostTest : public CorruptionTest {
 protected:
  absl::StatusOr<Attempt> Start(const AttemptOptions& options) {
    AloneExchange alone;
    return BeginAttempt(*storage_, alone, options, absl::Minutes(1));
  }
  // The start fails with an error that holds `said`, and changes nothing.
  void ExpectRefused(absl::StatusCode code, const std::vector<std::string>& said,
                     const AttemptOptions& options = {.job = "job"}) {
    const size_t epochs = ListEpochs(*storage_)->size();
    const size_t entries = storage_->List("")->size();
    const auto attempt = Start(options);
    EXPECT_EQ(attempt.status().code(), code) << attempt.status();
    for (const std::string& text : said) {
      EXPECT_THAT(std::string(attempt.status().message()), HasSubstr(text));
    }
    EXPECT_EQ(ListEpochs(*storage_)->size(), epochs);
    EXPECT_EQ(storage_->List("")->size(), entries);
  }
  void RemoveManifests() {
    const auto ids = ListCheckpoints(*storage_);
    ASSERT_TRUE(ids.ok()) << ids.status();
    for (const StepId& id : *ids) {
      ASSERT_TRUE(storage_->RemoveFile(id.DirectoryName() + "/" + kManifestName).ok());
    }
  }
};

TEST_F(LostTest, ARunWithoutItsManifestsDoesNotBeginAnew) {
  RemoveManifests();
  ExpectRefused(absl::StatusCode::kFailedPrecondition,
                {folder_.path() + " holds no checkpoint to resume from",
                 folder_.path() + "/latest names step-000000000002.e1",
                 "Found there: step-000000000001.e1, step-000000000002.e1, without MANIFEST.json",
                 "--fresh"});
  const auto fresh = Start({.job = "job", .fresh = true});
  EXPECT_TRUE(fresh.ok()) << fresh.status();
  // The new run has no checkpoint to lose, because the old hint is not its own.
  EXPECT_TRUE(Start({.job = "job"}).ok());
}

// Checkpoints that were moved to another place, with links in theirs.
TEST_F(LostTest, AStepThatIsALinkIsNamedAsOne) {
  const TemporaryFolder outside(TemporaryFolder::Where::kMemory);
  for (const char* const step : {"step-000000000001.e1", "step-000000000002.e1"}) {
    const std::string here = absl::StrCat(folder_.path(), "/", step);
    const std::string there = absl::StrCat(outside.path(), "/", step);
    ASSERT_EQ(rename(here.c_str(), there.c_str()), 0);
    ASSERT_EQ(symlink(there.c_str(), here.c_str()), 0);
  }
  ExpectRefused(absl::StatusCode::kFailedPrecondition,
                {"step-000000000001.e1 (no folder; a link is not followed), "
                 "step-000000000002.e1 (no folder; a link is not followed)"});
}

TEST_F(LostTest, ARunWithoutItsManifestsAndHintIsKnownByItsAttempts) {
  ASSERT_TRUE(BeginEpoch(*storage_, "job", kWorldSize, StepId{1, 2}).ok());
  RemoveManifests();
  ASSERT_TRUE(storage_->RemoveFile("latest").ok());
  ExpectRefused(absl::StatusCode::kFailedPrecondition, {"resumed from step 2", "--fresh"});
}

TEST_F(LostTest, ARunOfWhichEveryCheckpointIsDamagedDoesNotBeginAnew) {
  for (const char* step : {"step-000000000001.e1/", "step-000000000002.e1/"}) {
    Flip(folder_.path() + "/" + step + "state/rank-1-of-2.safetensors", 100, 1);
  }
  ExpectRefused(
      absl::StatusCode::kFailedPrecondition,
      {"of 2 checkpoints there, none is whole", Full("state/rank-1-of-2.safetensors"), "--fresh"});
}

TEST_F(LostTest, ACheckpointThatMayNotBeReadIsNotPassedOver) {
  ASSERT_EQ(chmod(folder_.path().c_str(), 0755), 0);
  ASSERT_EQ(chmod(Full("MANIFEST.json").c_str(), 0), 0);
  constexpr uid_t kNobody = 65534;
  const uid_t self = geteuid();
  if (self == 0) {
    ASSERT_EQ(seteuid(kNobody), 0);
  }
  ExpectRefused(absl::StatusCode::kPermissionDenied,
                {Full("MANIFEST.json"), "Permission denied", "make it readable"});
  ASSERT_EQ(seteuid(self), 0);
}

TEST_F(LostTest, AnEmptyFolderIsNoNewRunWhereTheRunsRecordsNameACheckpoint) {
  const TemporaryFolder other;  // An empty folder, as if the file system were not mounted.
  storage_ = *OpenPosixStorage(other.path());
  const AttemptOptions options = {.job = "job", .known_save = [] {
                                    return KnownSave{{1, 7}, "/away/step-000000000007.e1"};
                                  }};
  ExpectRefused(
      absl::StatusCode::kFailedPrecondition,
      {"this run saved step 7 in /away/step-000000000007.e1", "Found there: no step", "mount"},
      options);
  EXPECT_TRUE(Start({.job = "job", .known_save = [] { return std::nullopt; }}).ok());
}

TEST_F(LostTest, ARunThatDiedBeforeItsFirstCommitBeginsAnew) {
  const TemporaryFolder other;
  storage_ = *OpenPosixStorage(other.path());
  ASSERT_TRUE(BeginEpoch(*storage_, "job", kWorldSize, std::nullopt).ok());
  ASSERT_TRUE(storage_->MakeDirectory("step-000000000003.e1/model").ok());
  const auto attempt = Start({.job = "job"});
  ASSERT_TRUE(attempt.ok()) << attempt.status();
  EXPECT_EQ(attempt->checkpoint, nullptr);
}

}  // namespace
}  // namespace dtrain::checkpoint::corruption_test
