// What ranks report of the blocks that they have read, and the verdict over all reports.
#include "checkpoint/restore/restore_agreement.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "checkpoint/restore/block_set.h"

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

}  // namespace
}  // namespace dtrain::checkpoint::restore_agreement_test
