#include "launcher/commands/catalog.h"

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::launcher::catalog_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(OverviewText, DescribesWhatIsThereInOneLineEach) {
  const std::string text = OverviewText({"bench-comm", "bench-kernels-cuda", "plan"});
  EXPECT_THAT(text, AllOf(HasSubstr("  launch              start a program as N ranks"),
                          HasSubstr("  plan                compute the memory"),
                          HasSubstr("  bench comm          measure collectives"),
                          HasSubstr("  bench kernels-cuda  measure the CUDA kernels"),
                          Not(HasSubstr("bench mfu")), Not(HasSubstr("run the program"))))
      << "bench mfu is not among the programs";
}

TEST(OverviewText, AnybodysProgramIsACommandToo) {
  EXPECT_THAT(OverviewText({"mine"}),
              HasSubstr("  mine                run the program dtrain-mine"));
}

TEST(OverviewText, FitsATerminalOf80Columns) {
  const std::string text =
      OverviewText({"bench-comm", "bench-kernels", "bench-kernels-cuda", "bench-mfu", "checkpoint",
                    "config", "data", "eval", "finetune", "generate", "gpt", "minimal", "plan"});
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    EXPECT_LE(line.size(), 80U) << line;
  }
}

TEST(Groups, HaveTheirMembersAndAreOneWord) {
  const auto commands = AllCommands({"bench-comm", "bench-mfu", "data"});
  EXPECT_THAT(MembersOf("bench", commands), ElementsAre("comm", "mfu"));
  EXPECT_THAT(MembersOf("data", commands), ElementsAre());
  EXPECT_THAT(FirstWords(commands), AllOf(Contains("bench").Times(1), Contains("data").Times(1)));
  EXPECT_THAT(GroupText("bench", commands),
              AllOf(HasSubstr("Usage: dtrain bench COMMAND"), HasSubstr("  bench mfu "),
                    HasSubstr("Example: dtrain bench comm")));
  EXPECT_EQ(CommandOf("bench-kernels-cuda"), "bench kernels-cuda");
}

}  // namespace
}  // namespace dtrain::launcher::catalog_test
