#include "runtime/plan/data/text/token_spool.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "runtime/plan/data/token_mask.h"

namespace dtrain::plan::token_spool_test {
namespace {

class TokenSpoolTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(mkdtemp(folder_.data()), nullptr); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string folder_ = ::testing::TempDir() + "token_spool_XXXXXX";
};

// The second try must find what the first one found: a file that was filled with zeros meanwhile
// would give tokens that nobody has written.
TEST_F(TokenSpoolTest, AFileThatIsTooShortIsRefusedEachTimeAndLeftAsItIs) {
  const std::string path = absl::StrCat(folder_, "/train.tokens");
  std::ofstream(path) << "1234";
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_EQ(GrowingFile::Open(path, 8).status().code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(std::filesystem::file_size(path), 4U);
  }
  auto file = GrowingFile::Open(path, 2);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE(file->Append("x", 1).ok());
  ASSERT_TRUE(file->Sync().ok());
  EXPECT_EQ(std::filesystem::file_size(path), 3U);
}

TEST_F(TokenSpoolTest, AMaskThatCannotBeReadIsAnErrorAndNotNone) {
  const std::string tokens = absl::StrCat(folder_, "/train.bin");
  const auto none = MaskFile::OpenFor(tokens, 10);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_FALSE(none->has_value());
  ASSERT_EQ(symlink("/nowhere/at/all", MaskPath(tokens).c_str()), 0);
  EXPECT_FALSE(MaskFile::OpenFor(tokens, 10).ok());
}

}  // namespace
}  // namespace dtrain::plan::token_spool_test
