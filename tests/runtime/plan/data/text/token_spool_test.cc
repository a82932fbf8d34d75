#include "runtime/plan/data/text/token_spool.h"

#include <unistd.h>

#include <filesystem>
#include <string>

#include "gtest/gtest.h"
#include "runtime/plan/data/token_mask.h"
#include "tests/runtime/plan/temp_folder.h"

namespace dtrain::plan::token_spool_test {
namespace {

// The second try must find what the first one found: a file that was filled with zeros meanwhile
// would give tokens that nobody has written.
TEST(TokenSpoolTest, AFileThatIsTooShortIsRefusedEachTimeAndLeftAsItIs) {
  const TempFolder folder;
  const std::string path = folder.Write("train.tokens", "1234");
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

TEST(TokenSpoolTest, AMaskThatCannotBeReadIsAnErrorAndNotNone) {
  const TempFolder folder;
  const std::string tokens = folder.path() + "/train.bin";
  const auto none = MaskFile::OpenFor(tokens, 10);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_FALSE(none->has_value());
  ASSERT_EQ(symlink("/nowhere/at/all", MaskPath(tokens).c_str()), 0);
  EXPECT_FALSE(MaskFile::OpenFor(tokens, 10).ok());
}

}  // namespace
}  // namespace dtrain::plan::token_spool_test
