// Ranks' reports on the blocks that they have read, and the verdict over all reports.
#include "checkpoint/restore/restore_agreement.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "checkpoint/restore/block_set.h"
#include "checkpoint/storage/posix_storage.h"
#include "tests/checkpoint/testing.h"

namespace dtrain::checkpoint::restore_agreement_test {
namespace {

TEST(BlockSetTest, ASetIsReadAsItWasWritten) {
  BlockSet set(20);
  EXPECT_EQ(set.Encode(), "");
  for (const uint64_t block : {0, 1, 2, 7, 18, 19}) {
    set.Add(block);
  }
  EXPECT_EQ(set.Encode(), "0-3,7-8,18-20");
  const auto read = BlockSet::Parse(set.Encode(), 20);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->Encode(), set.Encode());
  EXPECT_EQ(read->Missing().size(), 14U);
  for (const char* wrong :
       {"0-21", "3-3", "5-2", "x", "1", "-1-2", "1-2-3", "1-99999999999999999999"}) {
    EXPECT_FALSE(BlockSet::Parse(wrong, 20).ok()) << wrong;
  }
}

std::string Seen(const std::string& blocks) {
  return EncodeRestoreReport({absl::OkStatus(), false, blocks});
}

TEST(JudgeRestoreTest, WhatAllHaveSeenTogetherIsWhole) {
  using Kind = RestoreVerdict::Kind;
  EXPECT_EQ(JudgeRestore({Seen("0-5"), Seen("3-10")}, 10).kind, Kind::kWhole);
  const RestoreVerdict unseen = JudgeRestore({Seen("0-5"), Seen("7-9")}, 10);
  EXPECT_EQ(unseen.kind, Kind::kUnseen);
  EXPECT_EQ(unseen.text, "5-7,9-10");
  EXPECT_EQ(JudgeRestore({Seen("")}, 0).kind, Kind::kWhole) << "no file has any bytes";
}

TEST(JudgeRestoreTest, DamageCountsBeforeWhatMayFollowFromIt) {
  using Kind = RestoreVerdict::Kind;
  const std::string damaged =
      EncodeRestoreReport({absl::InvalidArgumentError("a is damaged"), true, ""});
  const std::string failed =
      EncodeRestoreReport({absl::FailedPreconditionError("other"), false, ""});
  const std::string locked = EncodeRestoreReport({absl::PermissionDeniedError("locked"), true, ""});
  const RestoreVerdict first = JudgeRestore({failed, Seen("0-1"), damaged}, 10);
  EXPECT_EQ(first.kind, Kind::kDamaged);
  EXPECT_EQ(first.text, "a is damaged");
  EXPECT_EQ(JudgeRestore({damaged, locked}, 10).kind, Kind::kUnreadable);
  const RestoreVerdict other = JudgeRestore({Seen("0-10"), failed}, 10);
  EXPECT_EQ(other.kind, Kind::kFailed);
  EXPECT_EQ(other.text, "rank 1 could not restore: other");
  for (const char* strange : {"", "x", "s0-11", "sabc"}) {
    EXPECT_EQ(JudgeRestore({strange}, 10).kind, Kind::kFailed) << strange;
  }
}

// An older checkpoint is no answer to a peer that is away for a moment: the newest would be lost.
TEST(RestoreDamageTest, WhatMayPassIsNoDamageAndADiskThatCannotReadIs) {
  const TemporaryFolder folder{TemporaryFolder::Where::kMemory};
  const auto storage = *OpenPosixStorage(folder.path());
  const auto epoch = BeginEpoch(*storage, "job", 1, std::nullopt);
  ASSERT_TRUE(epoch.ok()) << epoch.status();
  ASSERT_TRUE(SaveOnRanks(*storage, OptionsFor(*epoch), 1, 1, 1)[0].durable());
  const auto opened = Checkpoint::Open(*storage, {1, 1}, Verify::kSizes);
  ASSERT_TRUE(opened.ok()) << opened.status();
  Checkpoint& checkpoint = **opened;
  for (const absl::Status& passing :
       {absl::UnavailableError("no answer"), absl::DeadlineExceededError("late"),
        ErrnoStatus(EMFILE, "cannot read"), ErrnoStatus(ENOMEM, "cannot read"),
        absl::InternalError("a thread that reads met an exception")}) {
    EXPECT_EQ(checkpoint.NoteDamage(passing), passing);
    EXPECT_TRUE(checkpoint.damage().ok()) << passing;
  }
  const absl::Status broken = Annotate(ErrnoStatus(EIO, "cannot read"), "model.safetensors");
  EXPECT_EQ(checkpoint.NoteDamage(broken), broken);
  EXPECT_EQ(checkpoint.damage(), broken);
}

}  // namespace
}  // namespace dtrain::checkpoint::restore_agreement_test
