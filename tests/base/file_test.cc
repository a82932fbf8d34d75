// Files appear whole or not at all, and every error names the path.
#include "base/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <string>

#include "base/system/move_aside.h"

namespace dtrain::file_test {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

class FileTest : public testing::Test {
 protected:
  FileTest() {
    char folder[] = "/tmp/dtrain-file-test-XXXXXX";
    folder_ = mkdtemp(folder);
  }
  ~FileTest() override { fs::remove_all(folder_); }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  // Number of names in the folder: a failed write must not leave one behind.
  size_t FilesInFolder() const {
    size_t count = 0;
    for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder_)) {
      ++count;
    }
    return count;
  }
  std::string folder_;
};

TEST_F(FileTest, WritesAndReadsBackEveryByte) {
  const std::string content("a\0b\xff", 4);
  ASSERT_TRUE(WriteFileAtomic(Path("f"), content).ok());
  EXPECT_EQ(ReadFile(Path("f")).value(), content);
  ASSERT_TRUE(WriteFileAtomic(Path("f"), "new", 0600).ok());
  EXPECT_EQ(ReadFile(Path("f")).value(), "new");
  struct stat info {};
  ASSERT_EQ(stat(Path("f").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  EXPECT_EQ(FilesInFolder(), 1U);
}

TEST_F(FileTest, AFailedWriteLeavesTheOldFileAndNothingElse) {
  ASSERT_TRUE(WriteFileAtomic(Path("f"), "old").ok());
  // A file size limit simulates a full disk: write(2) fails in the middle.
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1024, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const absl::Status status = WriteFileAtomic(Path("f"), std::string(100'000, 'x'));
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr(Path("f")));
  EXPECT_EQ(ReadFile(Path("f")).value(), "old");
  EXPECT_EQ(FilesInFolder(), 1U);
}

TEST_F(FileTest, ReadIsBounded) {
  ASSERT_TRUE(WriteFileAtomic(Path("f"), std::string(1000, 'x')).ok());
  EXPECT_TRUE(ReadFile(Path("f"), 1000).ok());
  EXPECT_EQ(ReadFile(Path("f"), 999).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(FileTest, ErrorsNameThePath) {
  EXPECT_EQ(ReadFile(Path("none")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(ReadFile(Path("none")).status().message()), HasSubstr(Path("none")));
  EXPECT_THAT(std::string(WriteFileAtomic(Path("no/f"), "x").message()), HasSubstr(Path("no/f")));
  EXPECT_FALSE(FileExists(Path("none")));
}

TEST_F(FileTest, MakesMissingParents) {
  ASSERT_TRUE(MakeDirectories(Path("a/b/c")).ok());
  ASSERT_TRUE(MakeDirectories(Path("a/b/c")).ok());
  EXPECT_TRUE(fs::is_directory(Path("a/b/c")));
  ASSERT_TRUE(WriteFileAtomic(Path("a/f"), "x").ok());
  EXPECT_THAT(std::string(MakeDirectories(Path("a/f")).message()), HasSubstr("not a directory"));
  EXPECT_FALSE(MakeDirectories(Path("a/f/g")).ok());
}

// Each old run keeps its own folder; a folder without a run in it is not moved.
TEST_F(FileTest, OldRunsAreMovedAsideOneBesideTheOther) {
  for (const std::string run : {"1", "2", "3"}) {
    ASSERT_TRUE(MakeDirectories(Path("run")).ok());
    ASSERT_TRUE(WriteFileAtomic(Path("run/config.json"), run).ok());
    const absl::Status moved = MoveRunAside(Path("run"));
    ASSERT_TRUE(moved.ok()) << moved;
    EXPECT_FALSE(FileExists(Path("run")));
    EXPECT_EQ(ReadFile(Path("run.old-" + run + "/config.json")).value(), run);
  }
  ASSERT_TRUE(MakeDirectories(Path("notes")).ok());
  EXPECT_TRUE(MoveRunAside(Path("notes")).ok());
  EXPECT_TRUE(FileExists(Path("notes")));
}

TEST_F(FileTest, AFreshStartIsDueUntilAnAttemptHasBegun) {
  ASSERT_TRUE(MakeDirectories(Path("run")).ok());
  EXPECT_FALSE(IsFreshStartDue(Path("run")));
  EXPECT_TRUE(EndFreshStart(Path("run")).ok()) << "nothing was noted";
  ASSERT_TRUE(NoteFreshStart(Path("run")).ok());
  ASSERT_TRUE(NoteFreshStart(Path("run")).ok()) << "by the launcher and by rank 0";
  EXPECT_TRUE(IsFreshStartDue(Path("run")));
  ASSERT_TRUE(EndFreshStart(Path("run")).ok());
  EXPECT_FALSE(IsFreshStartDue(Path("run")));
  ASSERT_TRUE(WriteFileAtomic(Path("file"), "x").ok());
  EXPECT_THAT(std::string(EndFreshStart(Path("file")).message()), HasSubstr("file/fresh-start"));
}

TEST_F(FileTest, DescriptorsAreCloseOnExecAndClosedOnce) {
  ASSERT_TRUE(WriteFileAtomic(Path("f"), "x").ok());
  int number = -1;
  {
    auto fd = OpenFile(Path("f"), O_RDONLY);
    ASSERT_TRUE(fd.ok());
    number = fd->get();
    EXPECT_NE(fcntl(number, F_GETFD) & FD_CLOEXEC, 0);
    UniqueFd moved = *std::move(fd);
    EXPECT_EQ(moved.get(), number);
  }
  EXPECT_EQ(fcntl(number, F_GETFD), -1);
}

}  // namespace
}  // namespace dtrain::file_test
