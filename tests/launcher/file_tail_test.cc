#include "launcher/records/file_tail.h"

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/temp_dir.h"

namespace dtrain::launcher::file_tail_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class FileTailTest : public ::testing::Test {
 protected:
  void Append(const std::string& text) { std::ofstream(path_, std::ios::app) << text; }
  TempDir folder_ = *TempDir::Create(::testing::TempDir());
  std::string path_ = folder_.path() + "/log";
};

TEST_F(FileTailTest, KeepsATornLineBackUntilItsEndArrives) {
  FileTail tail(path_);
  EXPECT_THAT(tail.Poll(), IsEmpty());
  Append("one\ntw");
  EXPECT_THAT(tail.Poll(), ElementsAre("one"));
  Append("o\nthree");
  EXPECT_THAT(tail.Poll(), ElementsAre("two"));
  EXPECT_THAT(tail.Drain(), ElementsAre("three"));
}

TEST_F(FileTailTest, SkipsWhatAnEarlierRunWrote) {
  Append("old\n");
  FileTail tail(path_, FileEnd(path_));
  Append("new\n");
  EXPECT_THAT(tail.Poll(), ElementsAre("new"));
}

TEST_F(FileTailTest, StartsOverWhenTheFileShrinks) {
  Append("a long first line\n");
  FileTail tail(path_);
  EXPECT_THAT(tail.Poll(), ElementsAre("a long first line"));
  std::filesystem::resize_file(path_, 0);
  Append("new\n");
  EXPECT_THAT(tail.Poll(), ElementsAre("new"));
}

TEST_F(FileTailTest, FollowsThePathWhenAnotherFileTakesIt) {
  Append("old 1\n");
  FileTail tail(path_);
  EXPECT_THAT(tail.Poll(), ElementsAre("old 1"));
  Append("old 2\ntor");
  std::filesystem::rename(path_, path_ + ".moved");
  EXPECT_THAT(tail.Poll(), ElementsAre("old 2"));
  EXPECT_THAT(tail.Poll(), IsEmpty()) << "no file has the path";
  Append("a new line that is longer\nnew 2\n");
  EXPECT_THAT(tail.Poll(), ElementsAre("a new line that is longer", "new 2"));
}

TEST_F(FileTailTest, CutsEndlessLinesAndGoesOn) {
  Append(std::string(3 * kLineBytesMax, 'x') + "\nnext\n");
  FileTail tail(path_);
  const std::vector<std::string> lines = tail.Drain();
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_LT(lines[0].size(), kLineBytesMax + 100);
  EXPECT_EQ(lines[1], "next");
}

TEST_F(FileTailTest, ReadsAFloodInBoundedPieces) {
  for (int i = 0; i < 1000; ++i) {
    Append("0123456789\n");
  }
  FileTail tail(path_);
  EXPECT_EQ(tail.Poll(1100).size(), 100U);
  EXPECT_EQ(tail.Drain().size(), 900U);
}

TEST_F(FileTailTest, LastLinesAreThisAttemptsOnly) {
  Append("old 1\nold 2\n");
  const uint64_t from = FileEnd(path_);
  Append("1\n2\n\n3\x1b[31m\n");
  EXPECT_THAT(LastLines(path_, from, 2), ElementsAre("2", "3?[31m"));
  EXPECT_THAT(LastLines(path_, from, 9), ElementsAre("1", "2", "3?[31m"));
  EXPECT_THAT(LastLines(path_ + ".none", 0, 9), IsEmpty());
}

TEST_F(FileTailTest, LastLinesOfAFileThatWasBegunAnewBeginBeforeThat) {
  Append("1\n2\n3\n");
  const uint64_t from = FileEnd(path_);
  std::filesystem::copy_file(path_, KeptPath(path_));
  std::filesystem::resize_file(path_, 0);
  EXPECT_THAT(LastLines(path_, 0, 2), ElementsAre("2", "3"));
  Append("4\n");
  EXPECT_THAT(LastLines(path_, 0, 3), ElementsAre("2", "3", "4"));
  EXPECT_THAT(LastLines(path_, from, 9), ElementsAre("1", "2", "3", "4"));
  EXPECT_THAT(LastLines(path_, 0, 1), ElementsAre("4"));
}

}  // namespace
}  // namespace dtrain::launcher::file_tail_test
