// The main function of test programs. `PROGRAM --file=NAME_test.cc` runs the tests of that file
// alone, for a program that is made of several files. It can be repeated, and combined with
// --gtest_filter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdio>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <system_error>

namespace dtrain::testing {
namespace {

constexpr int kUsageError = 64;

std::string_view NameOf(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// A folder of this process alone for ::testing::TempDir, where the environment names none: tests
// run beside each other, and some of their files have fixed names. A death test's process, which
// runs this program again, finds the name in its environment and leaves the folder to its parent.
class OwnTempDir {
 public:
  OwnTempDir() {
    std::error_code error;
    std::string pattern = std::filesystem::temp_directory_path(error) / "dtrain-tests-XXXXXX";
    if (!error && getenv("TEST_TMPDIR") == nullptr && mkdtemp(pattern.data()) != nullptr) {
      path_ = pattern;
      setenv("TEST_TMPDIR", path_.c_str(), 1);
    }
  }
  ~OwnTempDir() {
    std::error_code ignored;
    if (!path_.empty()) {
      std::filesystem::remove_all(path_, ignored);
    }
  }
  OwnTempDir(const OwnTempDir&) = delete;
  OwnTempDir& operator=(const OwnTempDir&) = delete;

 private:
  std::string path_;
};

// The filter that selects the tests in `files`, and those of `files` that have tests in this
// program.
struct Chosen {
  std::string filter;
  std::set<std::string> found;
};

Chosen Choose(const std::set<std::string>& files, std::string filter) {
  Chosen chosen{.filter = std::move(filter), .found = {}};
  char separator = chosen.filter.find('-') == std::string::npos ? '-' : ':';
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const ::testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const ::testing::TestInfo& test = *suite.GetTestInfo(j);
      if (const std::string file(NameOf(test.file())); files.contains(file)) {
        chosen.found.insert(file);
        continue;
      }
      chosen.filter.append(1, separator).append(suite.name()).append(".").append(test.name());
      separator = ':';
    }
  }
  return chosen;
}

int Main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);  // Also registers the instances of TEST_P.
  constexpr std::string_view kFile = "--file=";
  std::set<std::string> files;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (!argument.starts_with(kFile)) {
      std::fprintf(stderr,
                   "%s: unknown argument \"%s\"; allowed: --file=NAME_test.cc, --gtest_...\n",
                   argv[0], argv[i]);
      return kUsageError;
    }
    files.emplace(argument.substr(kFile.size()));
  }
  if (!files.empty()) {
    Chosen chosen = Choose(files, ::testing::GTEST_FLAG(filter));
    for (const std::string& file : files) {
      if (!chosen.found.contains(file)) {
        std::fprintf(stderr, "%s: no test stands in --file=%s; name a source of this program\n",
                     argv[0], file.c_str());
        return kUsageError;
      }
    }
    ::testing::GTEST_FLAG(filter) = std::move(chosen.filter);
  }
  const OwnTempDir folder;
  return RUN_ALL_TESTS();
}

}  // namespace
}  // namespace dtrain::testing

int main(int argc, char** argv) { return dtrain::testing::Main(argc, argv); }
