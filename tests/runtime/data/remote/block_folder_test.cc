#include "runtime/data/remote/block_folder.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runtime/plan/temp_folder.h"

namespace dtrain::remote::block_folder_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr int64_t kBytes = 1000;

std::vector<std::byte> BlockOf(const BlockId& id) {
  std::vector<std::byte> block;
  for (int64_t i = 0; i < id.bytes; ++i) {
    block.push_back(
        static_cast<std::byte>(i * 7 + id.number * 31 + static_cast<int64_t>(id.object)));
  }
  return block;
}

class BlockFolderTest : public ::testing::Test {
 protected:
  std::unique_ptr<BlockFolder> Open(int64_t bytes_max = 1 << 20) {
    auto folder = BlockFolder::Open(temporary_.path() + "/cache", bytes_max);
    EXPECT_TRUE(folder.ok()) << folder.status();
    return *std::move(folder);
  }
  // Whether the block is there with the right bytes.
  static bool Holds(BlockFolder& folder, const BlockId& id) {
    std::vector<std::byte> into(static_cast<size_t>(id.bytes));
    return folder.Read(id, 0, absl::MakeSpan(into)).ok() && into == BlockOf(id);
  }
  // The file of a block in the folder that Open makes.
  std::string FileOf(const BlockId& id) const {
    return absl::StrFormat("%s/cache/object-%016x/%d", temporary_.path(), id.object, id.number);
  }

  plan::TempFolder temporary_;
};

TEST_F(BlockFolderTest, AKeptBlockIsReadFromAnyOffsetAndByALaterRun) {
  const BlockId id{5, 3, kBytes};
  EXPECT_FALSE(Open()->Has(id));
  ASSERT_TRUE(Open()->Keep(id, BlockOf(id)).ok());
  const auto later = Open();
  EXPECT_TRUE(later->Has(id));
  EXPECT_TRUE(Holds(*later, id));
  std::byte last[2];
  ASSERT_TRUE(later->Read(id, kBytes - 2, last).ok());
  EXPECT_EQ(last[1], BlockOf(id).back());
  EXPECT_FALSE(later->Has({6, 3, kBytes})) << "another version of the object";
  EXPECT_EQ(later->Read({5, 4, kBytes}, 0, last).code(), absl::StatusCode::kNotFound);
}

TEST_F(BlockFolderTest, ADamagedOrCutBlockIsRemovedAndNotRead) {
  const BlockId id{1, 0, kBytes};
  const auto damage = {+[](const std::string& path) { fs::resize_file(path, kBytes - 1); },
                       +[](const std::string& path) { fs::resize_file(path, 0); },
                       +[](const std::string& path) { fs::resize_file(path, kBytes); },
                       +[](const std::string& path) {
                         std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
                         file.seekp(kBytes / 2).put('\xff').put('\xfe');
                       }};
  for (const auto& spoil : damage) {
    ASSERT_TRUE(Open()->Keep(id, BlockOf(id)).ok());
    spoil(FileOf(id));
    const auto folder = Open();
    std::byte byte[1];
    EXPECT_EQ(folder->Read(id, 0, byte).code(), absl::StatusCode::kNotFound);
    EXPECT_FALSE(folder->Has(id));
  }
}

// Which blocks are known to be whole does not grow for ever: it is forgotten when more of them were
// compared than the folder holds.
TEST_F(BlockFolderTest, ABlockIsComparedAgainWhenAsMuchAsTheFolderHoldsWasRead) {
  const auto writer = Open();  // It removes nothing.
  const auto folder = Open(/*bytes_max=*/10 * kBytes);
  for (int64_t number = 0; number <= 10; ++number) {
    ASSERT_TRUE(writer->Keep({1, number, kBytes}, BlockOf({1, number, kBytes})).ok());
  }
  const BlockId first{1, 0, kBytes};
  ASSERT_TRUE(Holds(*folder, first));
  std::fstream(FileOf(first), std::ios::in | std::ios::out | std::ios::binary)
      .seekp(kBytes / 2)
      .put('\xff')
      .put('\xfe');
  std::byte byte[1];
  for (int64_t number = 1; number <= 9; ++number) {
    ASSERT_TRUE(Holds(*folder, {1, number, kBytes}));
    EXPECT_TRUE(folder->Read(first, 0, byte).ok()) << "it was compared once, and " << number;
  }
  ASSERT_TRUE(Holds(*folder, {1, 10, kBytes}));
  EXPECT_TRUE(absl::IsNotFound(folder->Read(first, 0, byte)));
}

TEST_F(BlockFolderTest, ALockIsNotWaitedForOnceWaitingHasStopped) {
  const auto folder = Open();
  const auto other = Open();
  const BlockId id{1, 1, kBytes};
  UniqueFd held = other->Lock(id, Deadline::After(absl::Seconds(10)));
  ASSERT_TRUE(held.valid());
  folder->StopWaiting();
  EXPECT_FALSE(folder->Lock(id, Deadline::Infinite()).valid());
  held.reset();
  EXPECT_TRUE(folder->Lock(id, Deadline::Infinite()).valid()) << "one that is free is taken";
}

TEST_F(BlockFolderTest, BlocksThatWereNotReadForLongestLeaveAndNothingElseDoes) {
  const auto folder = Open(/*bytes_max=*/10 * kBytes);
  std::ofstream(folder->folder() + "/notes.txt") << "mine";
  fs::create_directory(folder->folder() + "/object-of-mine");
  std::ofstream(folder->folder() + "/object-of-mine/notes.txt") << "mine";
  for (int64_t number = 0; number < 8; ++number) {
    const BlockId id{1, number, kBytes};
    ASSERT_TRUE(folder->Keep(id, BlockOf(id)).ok());
    // An hour between two blocks.
    const timespec times[2] = {{1'700'000'000 + 3600 * number, 0},
                               {1'700'000'000 + 3600 * number, 0}};
    ASSERT_EQ(utimensat(AT_FDCWD, FileOf(id).c_str(), times, 0), 0);
  }
  EXPECT_TRUE(Holds(*folder, {1, 0, kBytes}));  // Read again, so it is the newest.
  ASSERT_TRUE(folder->Keep({2, 0, kBytes}, BlockOf({2, 0, kBytes})).ok());
  EXPECT_TRUE(folder->Has({1, 0, kBytes}));
  EXPECT_TRUE(folder->Has({2, 0, kBytes}));
  EXPECT_FALSE(folder->Has({1, 1, kBytes}));
  EXPECT_TRUE(folder->Has({1, 7, kBytes}));
  EXPECT_TRUE(fs::exists(folder->folder() + "/notes.txt"));
  EXPECT_TRUE(fs::exists(folder->folder() + "/object-of-mine/notes.txt"));
}

TEST_F(BlockFolderTest, AKilledWriterLeavesWholeBlocksOrNone) {
  const auto folder = Open(/*bytes_max=*/64 << 20);
  constexpr int64_t kLarge = 1 << 20;
  for (int round = 0; round < 5; ++round) {
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (int64_t number = 0;; number = (number + 1) % 16) {
        const BlockId id{9, number, kLarge};
        static_cast<void>(folder->Keep(id, BlockOf(id)));
        if (write(ready[1], "x", 1) != 1) {
          _exit(1);
        }
      }
    }
    char byte = 0;
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
    kill(child, SIGKILL);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    close(ready[0]);
    close(ready[1]);
  }
  const auto after = Open(64 << 20);
  int whole = 0;
  for (int64_t number = 0; number < 16; ++number) {
    const BlockId id{9, number, kLarge};
    if (after->Has(id)) {
      EXPECT_TRUE(Holds(*after, id)) << "block " << number;
      ++whole;
    }
  }
  EXPECT_GT(whole, 0);
}

TEST_F(BlockFolderTest, TheLockOfABlockKeepsOthersOutUntilItsHolderEndsOrTimeIsUp) {
  const auto folder = Open();
  const BlockId id{1, 1, kBytes};
  UniqueFd mine = folder->Lock(id, Deadline::After(absl::Seconds(10)));
  ASSERT_TRUE(mine.valid());
  EXPECT_FALSE(folder->Lock(id, Deadline::After(absl::Milliseconds(20))).valid());
  EXPECT_TRUE(folder->Lock({1, 2, kBytes}, Deadline::After(absl::Seconds(10))).valid());
  mine.reset();
  EXPECT_TRUE(folder->Lock(id, Deadline::After(absl::Seconds(10))).valid());
}

TEST_F(BlockFolderTest, AFolderThatCannotBeWrittenToIsRefusedByName) {
  std::ofstream(temporary_.path() + "/file") << "not a folder";
  for (const char* const path : {"/file", "/file/below", "/proc/none"}) {
    const std::string folder = std::string(path) == "/proc/none" ? path : temporary_.path() + path;
    const absl::Status status = BlockFolder::Open(folder, 0).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << folder;
    EXPECT_THAT(std::string(status.message()), HasSubstr("data.cache_dir " + folder));
    EXPECT_THAT(std::string(status.message()), HasSubstr("set data.cache_dir"));
  }
}

TEST_F(BlockFolderTest, WithoutALimitHalfOfTheFreeDiskIsTheLimit) {
  const auto folder = BlockFolder::Open(temporary_.path() + "/cache", 0);
  ASSERT_TRUE(folder.ok());
  const auto space = fs::space(temporary_.path());
  EXPECT_NEAR(static_cast<double>((*folder)->bytes_max()), static_cast<double>(space.available) / 2,
              0.05 * static_cast<double>(space.available));
}

TEST_F(BlockFolderTest, AFileThatMayNotGrowLeavesNothingBehind) {
  const auto folder = Open();
  const BlockId id{3, 0, kBytes};
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, SIG_IGN);
  const rlimit small{100, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status status = folder->Keep(id, BlockOf(id));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_FALSE(status.ok());
  EXPECT_FALSE(folder->Has(id));
  EXPECT_TRUE(fs::is_empty(fs::path(FileOf(id)).parent_path()));
}

}  // namespace
}  // namespace dtrain::remote::block_folder_test
