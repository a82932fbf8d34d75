#include "launcher/commands/quick_start.h"

#include <filesystem>

#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/temp_dir.h"

namespace dtrain::launcher::quick_start_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class QuickStart : public ::testing::Test {
 protected:
  QuickStart() : folder_(*TempDir::Create(::testing::TempDir())) {}
  ~QuickStart() override { std::filesystem::remove_all(folder_.path()); }
  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }
  void Put(const std::string& name, size_t bytes) const {
    const std::string path = Path(name);
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    ASSERT_TRUE(WriteFileAtomic(path, std::string(bytes, 'x')).ok());
  }

 private:
  const TempDir folder_;
};

TEST_F(QuickStart, FindsTheConfigurationBesideTheProgramsOrSaysWhere) {
  const auto missing = DefaultConfig(Path("prefix"));
  EXPECT_THAT(std::string(missing.status().message()),
              AllOf(HasSubstr("prefix/share/dtrain/configs/gpt.json is missing"),
                    HasSubstr("dtrain launch")));
  Put("prefix/share/dtrain/configs/gpt.json", 2);
  EXPECT_EQ(*DefaultConfig(Path("prefix")), Path("prefix/share/dtrain/configs/gpt.json"));
}

TEST_F(QuickStart, TakesTheSystemsHeadersWhenThereAreEnough) {
  Put("system/sub/a.h", 600);
  Put("system/b.hpp", 600);
  Put("prefix/include/dtrain/c.h", 10);
  EXPECT_THAT(CorpusFolders(Path("system"), Path("prefix"), "", 1000), ElementsAre(Path("system")));
}

TEST_F(QuickStart, ElseTakesTheHeadersOfThePackageAndLibTorchToo) {
  Put("prefix/include/dtrain/c.h", 10);
  Put("torch/include/ATen/d.h", 10);
  EXPECT_THAT(CorpusFolders(Path("system"), Path("prefix"), Path("torch"), 1000),
              ElementsAre(Path("prefix/include"), Path("torch/include")))
      << "no system headers at all";
  Put("system/a.h", 10);
  EXPECT_THAT(CorpusFolders(Path("system"), Path("prefix"), "", 1000),
              ElementsAre(Path("system"), Path("prefix/include")));
}

TEST_F(QuickStart, IsEmptyWhereThereIsNoText) {
  Put("system/readme.txt", 5000);
  EXPECT_THAT(CorpusFolders(Path("system"), Path("prefix"), "", 1000), ElementsAre());
}

TEST_F(QuickStart, TakesOneFolderOnceWhenThePackageIsInTheSystem) {
  Put("usr/include/dtrain/c.h", 10);
  EXPECT_THAT(CorpusFolders(Path("usr/include"), Path("usr"), "", 1000),
              ElementsAre(Path("usr/include")));
}

TEST(NamesData, SeesBothSpellings) {
  EXPECT_TRUE(NamesData({"--set", "data.train=[\"x\"]"}));
  EXPECT_TRUE(NamesData({"--set=data.train=[\"x\"]"}));
  EXPECT_FALSE(NamesData({"--set", "train_steps=3"}));
}

}  // namespace
}  // namespace dtrain::launcher::quick_start_test
