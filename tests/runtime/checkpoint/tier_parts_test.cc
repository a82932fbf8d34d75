// The parts of the local tier that need no training: messages, the index of files, the room for
// replicas, and what is left of other runs.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/numeric/prng.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "runtime/checkpoint/tiers/file_index.h"
#include "runtime/checkpoint/tiers/file_messages.h"
#include "runtime/checkpoint/tiers/replica_memory.h"
#include "tests/fuzz/mutate.h"
#include "tests/runtime/testing/job_for_tests.h"

namespace dtrain::tier_parts_test {
namespace {

using ::testing::HasSubstr;

TEST(FileMessagesTest, RequestsRepliesAndListsAreReadAsTheyWereWritten) {
  const FileRequest request{.op = FileOp::kRead,
                            .place = FilePlace::kMemory,
                            .path = "step-1/state/a",
                            .offset = 1ULL << 40,
                            .bytes = 7,
                            .access = checkpoint::Access::kEveryone};
  const auto read = ParseFileRequest(EncodeFileRequest(request));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->op, FileOp::kRead);
  EXPECT_EQ(read->place, FilePlace::kMemory);
  EXPECT_EQ(read->path, request.path);
  EXPECT_EQ(read->offset, request.offset);
  EXPECT_EQ(read->bytes, 7U);
  EXPECT_EQ(read->access, checkpoint::Access::kEveryone);

  const auto reply =
      ParseFileReply(EncodeFileReply({absl::NotFoundError("no such"), 3, "the rest"}));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->status, absl::NotFoundError("no such"));
  EXPECT_EQ(reply->number, 3U);
  EXPECT_EQ(reply->text, "the rest");
  // Another copy is read in place of one that a disk cannot read, but not for a host that is gone.
  for (const absl::Status& failed :
       {ErrnoStatus(EIO, "cannot read a"), absl::UnavailableError("it is gone")}) {
    EXPECT_EQ(ParseFileReply(EncodeFileReply({failed}))->status, failed);
  }

  const auto entries = ParseEntries(EncodeEntries({{"a", true, 0}, {"b", false, 1ULL << 33}}));
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_EQ(entries->size(), 2U);
  EXPECT_TRUE((*entries)[0].is_directory);
  EXPECT_EQ((*entries)[1].name, "b");
  EXPECT_EQ((*entries)[1].bytes, 1ULL << 33);

  const checkpoint::FileChecksum checksum{9, "0123", {1, 2, 4000000000U}};
  const auto found = ParseChecksum(EncodeChecksum(checksum));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(*found, checksum);
}

TEST(FileMessagesTest, EveryCutAndEveryStrangeValueIsAnError) {
  const std::string request = EncodeFileRequest({.op = FileOp::kList, .path = "state"});
  for (size_t bytes = 0; bytes < request.size(); ++bytes) {
    EXPECT_FALSE(ParseFileRequest(request.substr(0, bytes)).ok()) << bytes;
  }
  EXPECT_FALSE(ParseFileRequest(request + "x").ok());
  for (const size_t at : {size_t{0}, size_t{1}, size_t{2}}) {  // Operation, place and access.
    std::string strange = request;
    strange[at] = '\x63';
    EXPECT_FALSE(ParseFileRequest(strange).ok()) << at;
  }
  const std::string entries = EncodeEntries({{"a", true, 0}, {"b", false, 5}});
  const std::string checksum = EncodeChecksum({9, "0123", {1, 2}});
  for (size_t bytes = 0; bytes < entries.size(); ++bytes) {
    EXPECT_FALSE(ParseEntries(entries.substr(0, bytes)).ok()) << bytes;
  }
  for (size_t bytes = 0; bytes < checksum.size(); ++bytes) {
    EXPECT_FALSE(ParseChecksum(checksum.substr(0, bytes)).ok()) << bytes;
  }
  EXPECT_FALSE(ParseFileReply(std::string("\xff\0\0\0", 4)).ok());
}

// Parsing a damaged text gives a value or an error, and a value is written as it was read.
TEST(FileMessagesTest, DamagedTextsEndInAValueOrAnError) {
  constexpr uint64_t kSeed = 20261126;
  SplitMix64 random(kSeed);
  const std::vector<std::string> seeds = {
      EncodeFileRequest({.op = FileOp::kCreate, .path = "step-1/model/a", .bytes = 77}),
      EncodeFileReply({absl::OkStatus(), 3, EncodeEntries({{"a", true, 0}, {"b", false, 5}})}),
      EncodeEntries({{"a", true, 0}, {"b", false, 5}}), EncodeChecksum({9, "0123", {1, 2}})};
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    const std::string text = MutatedSeed(seeds, random);
    if (const auto request = ParseFileRequest(text); request.ok()) {
      ++accepted;
      EXPECT_EQ(EncodeFileRequest(*request), text) << "seed " << kSeed << ", round " << i;
    }
    if (const auto entries = ParseEntries(text); entries.ok()) {
      ++accepted;
      EXPECT_TRUE(ParseEntries(EncodeEntries(*entries)).ok());
    }
    if (const auto checksum = ParseChecksum(text); checksum.ok()) {
      ++accepted;
      EXPECT_EQ(EncodeChecksum(*checksum), text) << "seed " << kSeed << ", round " << i;
    }
    if (const auto reply = ParseFileReply(text); reply.ok()) {
      ++accepted;
      EXPECT_TRUE(ParseFileReply(EncodeFileReply(*reply)).ok());
    }
    FileIndex index;
    index.Take(text, 4).IgnoreError();
  }
  EXPECT_GT(accepted, 1000);
}

TEST(FileIndexTest, AnotherRankTakesWhatOneHasFound) {
  FileIndex mine;
  mine.SetFolder("s/state", {{"a", {{2, 10}, {0, 10}}}, {"b", {{1, 5}}}});
  mine.SetFolder("s/other", {{"c", {{0, 1}}}});
  FileIndex theirs;
  ASSERT_TRUE(theirs.Take(mine.Encode({"s/state", "s/none"}), 3).ok());
  ASSERT_TRUE(theirs.Find("s/state/a").has_value());
  EXPECT_EQ(theirs.Find("s/state/a")->size(), 2U);
  EXPECT_EQ(theirs.Find("s/state/a")->front().place, 2U);
  EXPECT_EQ(theirs.Find("s/state/b")->front().bytes, 5U);
  EXPECT_FALSE(theirs.Find("s/other/c").has_value());
  EXPECT_FALSE(theirs.Find("s/state/d").has_value());
  mine.ForgetFolder("s");
  EXPECT_FALSE(mine.Find("s/state/a").has_value());
}

TEST(FileIndexTest, AListThatIsCutOrNamesAnUnknownPlaceIsRefused) {
  FileIndex mine;
  mine.SetFolder("s", {{"a", {{2, 10}, {0, 10}}}});
  const std::string text = mine.Encode({"s"});
  FileIndex theirs;
  for (size_t bytes = 0; bytes < text.size(); ++bytes) {
    EXPECT_FALSE(theirs.Take(text.substr(0, bytes), 3).ok()) << bytes;
  }
  EXPECT_FALSE(theirs.Take(text, 2).ok());
  EXPECT_FALSE(theirs.Find("s/a").has_value());
  EXPECT_TRUE(theirs.Take(text, 3).ok());
}

TEST(ReplicaRoomTest, TwoSnapshotsMustFitBesideWhatStagingTakes) {
  const ReplicaRoom room{.snapshot_bytes = 500, .room_bytes = 1300, .folder = "h:/shm"};
  EXPECT_TRUE(CheckReplicaRoom(room).ok());
  ReplicaRoom less = room;
  less.staging_bytes = 400;
  const absl::Status status = CheckReplicaRoom(less);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("(1000 bytes) in h:/shm"));
  EXPECT_THAT(status.message(), HasSubstr("(900 bytes) are free"));
  EXPECT_THAT(status.message(), HasSubstr("(400 bytes) that checkpoint.staging_memory takes"));
  ReplicaRoom allowed = room;
  allowed.allowed_bytes = 999;
  EXPECT_THAT(CheckReplicaRoom(allowed).message(), HasSubstr("(999 bytes)"));
  allowed.allowed_bytes = 1000;
  EXPECT_TRUE(CheckReplicaRoom(allowed).ok());
}

void SetAge(const std::string& path, time_t seconds) {
  const timespec then{time(nullptr) - seconds, 0};
  const timespec times[] = {then, then};
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
}

TEST(ReplicaRoomTest, ReplicasOfTheJournalTakeWhatTwoSnapshotsLeave) {
  const ReplicaRoom room{.snapshot_bytes = 100, .room_bytes = 1000, .staging_bytes = 50};
  EXPECT_EQ(JournalRoomBytes(room), (1000U - 200 - 50) / 2);  // Half is left to training.
  ReplicaRoom allowed = room;
  allowed.allowed_bytes = 300;
  EXPECT_EQ(JournalRoomBytes(allowed), 100U);
  allowed.allowed_bytes = 5000;
  EXPECT_EQ(JournalRoomBytes(allowed), 750U);  // There is no more.
  allowed.allowed_bytes = 200;
  EXPECT_EQ(JournalRoomBytes(allowed), 0U);
  EXPECT_EQ(JournalRoomBytes({.snapshot_bytes = 100, .room_bytes = 150}), 0U);
}

TEST(ReplicaMemoryTest, FoldersOfOtherRunsGoOnceTheyAreOldAndUnused) {
  const testing::TempFolder folder;
  constexpr time_t kTwoDays = 2 * 24 * 3600;
  for (const char* name : {"old", "used", "young", "own"}) {
    const std::string path = absl::StrCat(folder.path(), "/dtrain-replicas-", name);
    ASSERT_TRUE(MakeDirectories(path + "/step-000000000001.e1").ok());
    ASSERT_NO_FATAL_FAILURE(SetAge(path, std::string(name) == "young" ? 60 : kTwoDays));
  }
  ASSERT_TRUE(MakeDirectories(folder.path() + "/somebody-else").ok());
  ASSERT_NO_FATAL_FAILURE(SetAge(folder.path() + "/somebody-else", kTwoDays));
  const std::string used = folder.path() + "/dtrain-replicas-used";
  const UniqueFd lock(open(used.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(flock(lock.get(), LOCK_SH), 0);
  RemoveStaleReplicas(folder.path(), folder.path() + "/dtrain-replicas-own", absl::Hours(24));
  EXPECT_FALSE(FileExists(folder.path() + "/dtrain-replicas-old"));
  for (const char* name :
       {"dtrain-replicas-used", "dtrain-replicas-young", "dtrain-replicas-own", "somebody-else"}) {
    EXPECT_TRUE(FileExists(absl::StrCat(folder.path(), "/", name))) << name;
  }
}

TEST(ReplicaMemoryTest, AFolderThatOthersMayReadIsRefused) {
  const testing::TempFolder folder;
  const std::string path = folder.path() + "/dtrain-replicas-a_b";
  ASSERT_EQ(mkdir(path.c_str(), 0700), 0);
  ASSERT_EQ(chmod(path.c_str(), 0755), 0);
  const auto opened = ReplicaMemory::Open(folder.path(), "a/b");
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(opened.status().message(), HasSubstr("has mode 755"));
  ASSERT_EQ(chmod(path.c_str(), 0700), 0);
  const auto again = ReplicaMemory::Open(folder.path(), "a/b");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_GT((*again)->RoomBytes(), 0U);
  EXPECT_TRUE((*again)->Remove().ok());
  EXPECT_FALSE(FileExists(path));
}

// In /dev/shm anybody could put a link under the name.
TEST(ReplicaMemoryTest, ALinkInPlaceOfTheFolderIsRefused) {
  const testing::TempFolder folder;
  ASSERT_TRUE(MakeDirectories(folder.path() + "/elsewhere", 0700).ok());
  std::filesystem::create_directory_symlink(folder.path() + "/elsewhere",
                                            folder.path() + "/dtrain-replicas-run");
  EXPECT_FALSE(ReplicaMemory::Open(folder.path(), "run").ok());
}

}  // namespace
}  // namespace dtrain::tier_parts_test
