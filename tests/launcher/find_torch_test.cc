#include "launcher/start/find_torch.h"

#include <unistd.h>

#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::launcher::find_torch_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class FindTorchTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = std::filesystem::canonical(testing::TempDir()).string() +
            absl::StrCat("/find-torch-", getpid());
    std::filesystem::remove_all(root_);
    ASSERT_TRUE(MakeDirectories(root_).ok());
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  // Makes a folder that looks like LibTorch of `release`, and gives its path.
  std::string Put(const std::string& below, const std::string& release) {
    const std::string folder = absl::StrCat(root_, "/", below);
    EXPECT_TRUE(MakeDirectories(folder + "/lib").ok());
    EXPECT_TRUE(WriteFileAtomic(folder + "/lib/libtorch_cpu.so", "").ok());
    EXPECT_TRUE(
        WriteFileAtomic(folder + "/version.py", absl::StrCat("__version__ = '", release, "'\n"))
            .ok());
    return folder;
  }

  // The user's own packages are below home/.local.
  absl::StatusOr<Torch> Find(const std::string& prefix, const std::string& environment = "") {
    return FindTorch(
        {absl::StrCat(root_, "/", prefix), environment, "2.11.0+cu130", root_ + "/home/.local"});
  }

  std::string root_;
};

TEST_F(FindTorchTest, TakesTheTorchOfItsEnvironmentForAnyPython) {
  const std::string torch = Put("venv/lib/python3.13/site-packages/torch", "2.11.0+cpu");
  const auto found = Find("venv");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->folder, torch);
  EXPECT_EQ(found->release, "2.11.0+cpu");
}

TEST_F(FindTorchTest, TheLinkComesFirstAndIsFollowedToWhereLibrariesFindTheirOwn) {
  Put("usr/lib/python3/dist-packages/torch", "2.11.0");
  const std::string torch = Put("elsewhere/torch", "2.11.1");
  ASSERT_TRUE(MakeDirectories(root_ + "/usr/lib/dtrain").ok());
  std::filesystem::create_symlink(torch, root_ + "/usr/lib/dtrain/torch");
  const auto found = Find("usr");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->folder, torch);
}

TEST_F(FindTorchTest, AVirtualEnvironmentThatTakesSystemPackagesFindsTheSystems) {
  const std::string torch = Put("system/local/lib/python3.11/dist-packages/torch", "2.11.0");
  ASSERT_TRUE(MakeDirectories(root_ + "/venv").ok());
  const auto write = [&](const char* uses) {
    return WriteFileAtomic(root_ + "/venv/pyvenv.cfg",
                           absl::StrCat("home = ", root_, "/system/bin\n",
                                        "include-system-site-packages = ", uses, "\n"));
  };
  ASSERT_TRUE(write("false").ok());
  EXPECT_EQ(Find("venv").status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(write("true").ok());
  const auto found = Find("venv");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->folder, torch);
}

TEST_F(FindTorchTest, OfSeveralPythonsTheOneWithTheRightReleaseIsTaken) {
  Put("home/lib/python3.10/site-packages/torch", "2.10.0");
  const std::string right = Put("home/lib/python3.12/site-packages/torch", "2.11.0");
  const auto found = Find("home");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->folder, right);
}

// Like Python, it takes packages of `pip install --user` before those of the system.
TEST_F(FindTorchTest, TheUsersOwnPackagesComeBeforeTheSystems) {
  const std::string system = Put("usr/lib/python3.12/site-packages/torch", "2.11.0");
  const std::string own = Put("home/.local/lib/python3.12/site-packages/torch", "2.11.0+cpu");
  EXPECT_EQ(Find("usr")->folder, own);
  EXPECT_EQ(Find("home/.local")->folder, own) << "dtrain itself was installed by --user";
  Put("home/.local/lib/python3.12/site-packages/torch", "2.10.0");
  EXPECT_EQ(Find("usr")->folder, system) << "only that release fits";
  Put("home/.local/lib/python3.12/site-packages/torch", "2.11.0");
  Put("usr/lib/python3.12/site-packages/torch", "2.10.0");
  EXPECT_EQ(Find("usr")->folder, own) << "only that release fits";
}

TEST_F(FindTorchTest, AVirtualEnvironmentHasTheUsersPackagesOnlyWithTheSystems) {
  const std::string own = Put("home/.local/lib/python3.12/site-packages/torch", "2.11.0");
  Put("system/lib/python3.12/site-packages/torch", "2.11.0");
  ASSERT_TRUE(MakeDirectories(root_ + "/venv").ok());
  const std::string home = absl::StrCat("home = ", root_, "/system/bin\n");
  ASSERT_TRUE(WriteFileAtomic(root_ + "/venv/pyvenv.cfg", home).ok());
  EXPECT_EQ(Find("venv").status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(
      WriteFileAtomic(root_ + "/venv/pyvenv.cfg", home + "include-system-site-packages = true\n")
          .ok());
  EXPECT_EQ(Find("venv")->folder, own);
  const std::string inside = Put("venv/lib/python3.12/site-packages/torch", "2.11.0");
  EXPECT_EQ(Find("venv")->folder, inside);
}

TEST(UserBase, FollowsPythonsVariables) {
  EXPECT_EQ(UserBaseOf({{"HOME", "/home/me"}}), "/home/me/.local");
  EXPECT_EQ(UserBaseOf({{"HOME", "/home/me"}, {"PYTHONUSERBASE", "/base"}}), "/base");
  EXPECT_EQ(UserBaseOf({{"HOME", "/home/me"}, {"PYTHONNOUSERSITE", "1"}}), "");
  EXPECT_EQ(UserBaseOf({}), "");
}

TEST_F(FindTorchTest, AnotherReleaseIsRefusedInOneLineThatSaysWhatToInstall) {
  const std::string torch = Put("venv/lib/python3.12/site-packages/torch", "2.10.0+cpu");
  const auto found = Find("venv");
  EXPECT_EQ(found.status().code(), absl::StatusCode::kFailedPrecondition);
  const std::string message(found.status().message());
  EXPECT_THAT(message,
              AllOf(HasSubstr(torch), HasSubstr("2.10.0"), HasSubstr("install torch==2.11.0 ")));
  EXPECT_FALSE(absl::StrContains(message, "\n"));
}

TEST_F(FindTorchTest, NoTorchNamesWhereItLookedAndWhatToInstall) {
  const auto found = Find("nowhere");
  EXPECT_EQ(found.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(found.status().message()),
              AllOf(HasSubstr("/nowhere/lib/dtrain/torch"), HasSubstr("torch==2.11.0"),
                    HasSubstr("DTRAIN_TORCH")));
}

TEST_F(FindTorchTest, TheEnvironmentVariableDecidesAlone) {
  Put("venv/lib/python3.13/site-packages/torch", "2.11.0");
  const std::string named = Put("mine", "2.11.0");
  const auto found = Find("venv", named);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->folder, named);
  EXPECT_THAT(std::string(Find("venv", "/nowhere").status().message()),
              HasSubstr("DTRAIN_TORCH=/nowhere"));
  const std::string old = Put("old", "1.13.1");
  EXPECT_THAT(std::string(Find("venv", old).status().message()), HasSubstr("1.13.1"));
}

TEST(TorchRelease, IsReadFromAWheelOrAnArchive) {
  EXPECT_EQ(TorchReleaseIn("a = 1\n__version__ = '2.11.0+cu130'\ndebug = False\n", ""),
            "2.11.0+cu130");
  EXPECT_EQ(TorchReleaseIn("", "2.11.0+cpu\n"), "2.11.0+cpu");
  EXPECT_EQ(TorchReleaseIn("", ""), "");
}

TEST(TorchRelease, AgreesByMajorAndMinorNumber) {
  EXPECT_TRUE(TorchReleasesAgree("2.11.0+cu130", "2.11.1+cpu"));
  EXPECT_FALSE(TorchReleasesAgree("2.11.0", "2.1.0"));
  EXPECT_FALSE(TorchReleasesAgree("2.11.0", "3.11.0"));
  EXPECT_TRUE(TorchReleasesAgree("", "2.10.0"));
}

}  // namespace
}  // namespace dtrain::launcher::find_torch_test
