#include "base/dl/plugin_folders.h"

#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::plugin_folders_test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> Normal(const std::vector<std::string>& folders) {
  std::vector<std::string> normal;
  for (const std::string& folder : folders) {
    normal.push_back(std::filesystem::path(folder).lexically_normal().string());
  }
  return normal;
}

TEST(PluginFolders, AreTheLibrariesOfTheTreeOfEveryInstalledProgram) {
  EXPECT_THAT(Normal(PluginFolders("", "/opt/dtrain/bin/dtrain")), Contains("/opt/dtrain/lib"));
  EXPECT_THAT(Normal(PluginFolders("", "/opt/dtrain/lib/dtrain/dtrain-gpt")),
              Contains("/opt/dtrain/lib/"));
}

TEST(PluginFolders, AreTheNamedOneAlone) {
  EXPECT_THAT(PluginFolders("/elsewhere", "/opt/dtrain/bin/dtrain"), ElementsAre("/elsewhere"));
}

TEST(PluginFolders, AreNoneOfAProgramWithoutAFolder) {
  EXPECT_THAT(PluginFolders("", ""), IsEmpty());
}

}  // namespace
}  // namespace dtrain::plugin_folders_test
