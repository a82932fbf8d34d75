#include "runtime/job/arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dtrain::arguments_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ArgumentsTest, ReadsTheContract) {
  const auto a = ParseProgramArguments({"prog", "c.json", "--set", "a.b=1", "--set=c=2",
                                        "--run-dir", "runs/x", "--fresh", "--accept-change",
                                        "scheduler", "--accept-change=optimizer.params.lr"});
  ASSERT_TRUE(a.ok()) << a.status();
  EXPECT_EQ(a->options.config_file, "c.json");
  EXPECT_THAT(a->options.overrides, ElementsAre("a.b=1", "c=2"));
  EXPECT_EQ(a->options.run_dir, "runs/x");
  EXPECT_TRUE(a->options.fresh);
  EXPECT_THAT(a->options.accept_changes, ElementsAre("scheduler", "optimizer.params.lr"));
}

TEST(ArgumentsTest, AcceptsDeepSpeedsSpelling) {
  const auto a =
      ParseProgramArguments({"prog", "--local_rank=0", "--deepspeed", "--deepspeed_config=d.json"});
  ASSERT_TRUE(a.ok()) << a.status();
  EXPECT_EQ(a->options.config_file, "d.json");
}

TEST(ArgumentsTest, RefusesByName) {
  EXPECT_THAT(std::string(ParseProgramArguments({"prog", "--frsh"}).status().message()),
              HasSubstr("--frsh"));
  EXPECT_THAT(std::string(ParseProgramArguments({"prog", "--set"}).status().message()),
              HasSubstr("needs a value"));
  EXPECT_THAT(std::string(ParseProgramArguments({"prog", "a.json", "b.json"}).status().message()),
              HasSubstr("b.json"));
}

// A variable of a script that is not set, and an option whose value was forgotten.
TEST(ArgumentsTest, AnEmptyValueIsRefusedAndAnotherOptionIsNoValue) {
  const auto message = [](const std::vector<std::string>& words) {
    std::vector<std::string> argv = {"prog", "c.json"};
    argv.insert(argv.end(), words.begin(), words.end());
    return std::string(ParseProgramArguments(argv).status().message());
  };
  for (const std::string name :
       {"--run-dir", "--set", "--accept-change", "--deepspeed_config", "--local_rank"}) {
    EXPECT_THAT(message({name, "--fresh"}), HasSubstr(name + " needs a value after it; what "
                                                             "follows is the option --fresh"));
    if (name != "--local_rank") {  // Its value does not matter.
      EXPECT_THAT(message({name + "="}), HasSubstr(name + " has an empty value"));
    }
    EXPECT_THAT(message({name, ""}), HasSubstr(name + " has an empty value"));
  }
  EXPECT_THAT(message({""}), HasSubstr("unknown argument \"\""));
  const auto odd = ParseProgramArguments({"prog", "c.json", "--run-dir=--odd"});
  ASSERT_TRUE(odd.ok()) << odd.status();
  EXPECT_EQ(odd->options.run_dir, "--odd");
}

}  // namespace
}  // namespace dtrain::arguments_test
