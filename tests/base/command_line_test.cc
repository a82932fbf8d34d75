#include "base/console/command_line.h"

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::command_line_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A tool with two commands and options of all kinds.
class Tool {
 public:
  Tool() {
    app_.require_subcommand(1);
    app_.set_version_flag("--version", "tool 1");
    CLI::App* const list = app_.add_subcommand("list", "List all.\n\nMore on it.");
    list->add_option("DIR", folder_, "Folder to look into")->required();
    list->add_option("--ranks,-r", ranks_,
                     "Number of ranks, with an explanation that is long enough to need more than "
                     "one line of a terminal")
        ->check(CLI::Range(1, 64))
        ->capture_default_str();
    list->add_option("--kind", kind_, "Kind of things")
        ->check(CLI::IsMember({"shm", "tcp"}))
        ->capture_default_str();
    list->footer("Example:\n  tool list runs/gpt --kind tcp");
    CLI::App* const show = app_.add_subcommand("show", "Show one");
    show->add_option("--to", target_, "Where to write it")->option_text("FILE")->required();
  }
  struct Result {
    std::optional<int> code;
    std::string out;
    std::string err;
  };
  Result Parse(const std::vector<std::string>& arguments) {
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    Result result{ParseCommandLine(app_, arguments), "", ""};
    result.out = testing::internal::GetCapturedStdout();
    result.err = testing::internal::GetCapturedStderr();
    return result;
  }
  int ranks() const { return ranks_; }

 private:
  CLI::App app_{"Looks at things.", "tool"};
  std::string folder_;
  std::string target_;
  std::string kind_ = "shm";
  int ranks_ = 2;
};

TEST(ParseCommandLine, GoesOnWhenAllIsWell) {
  Tool tool;
  EXPECT_EQ(tool.Parse({"list", "here", "--ranks", "3"}).code, std::nullopt);
  EXPECT_EQ(tool.ranks(), 3);
}

TEST(ParseCommandLine, HelpShowsAllowedValuesDefaultsAndTheExampleWithin80Columns) {
  const auto result = Tool().Parse({"list", "--help"});
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("Usage: tool list [options] DIR"), HasSubstr("Allowed: 1 to 64."),
                    HasSubstr("Default: 2."), HasSubstr("Allowed: shm, tcp."),
                    HasSubstr("Default: shm."), HasSubstr("  tool list runs/gpt --kind tcp"),
                    HasSubstr("-r, --ranks N"), Not(HasSubstr("REQUIRED"))));
  for (const absl::string_view line : absl::StrSplit(result.out, '\n')) {
    EXPECT_LE(line.size(), 80U) << line;
  }
}

TEST(ParseCommandLine, HelpSaysWhatIsRequired) {
  const auto result = Tool().Parse({"show", "--help"});
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, HasSubstr("  --to FILE                 Where to write it. Required.\n"));
}

TEST(ParseCommandLine, HelpListsEachCommandInOneLine) {
  const auto result = Tool().Parse({"--help"});
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, AllOf(HasSubstr("\nCommands:\n  list                      List all.\n"),
                                HasSubstr("  show                      Show one\n"),
                                Not(HasSubstr("More on it"))));
}

TEST(ParseCommandLine, WrongUseIsOneLineWithWhatWouldBeRight) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"lst", "x"}, "tool: unknown command lst; did you mean list? There are: list, show\n"},
      {{}, "tool: no command given; there are: list, show\n"},
      {{"list", "x", "--rank", "2"},
       "tool list: unknown option --rank; did you mean --ranks?; see tool list --help\n"},
      {{"list", "x", "y"}, "tool list: argument y was not expected; see tool list --help\n"},
      {{"list", "x", "--ranks", "0"},
       "tool list: --ranks: Value 0 not in range 1 to 64; see tool list --help\n"},
      {{"list"}, "tool list: DIR is required; see tool list --help\n"},
      {{"show", "--ot", "x"},
       "tool show: unknown option --ot; did you mean --to?; see tool show --help\n"},
      {{"show", "x"}, "tool show: argument x was not expected; see tool show --help\n"},
      {{"show"}, "tool show: --to is required; see tool show --help\n"},
      {{"--verison"}, "tool: unknown option --verison; did you mean --version?; see tool --help\n"},
  };
  for (const auto& [arguments, message] : cases) {
    const auto result = Tool().Parse(arguments);
    EXPECT_EQ(result.code, 64);
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(result.err, message);
  }
}

TEST(ParseCommandLine, AnEmptyValueIsEmptyAndTakesNoOtherWord) {
  Tool empty;
  EXPECT_EQ(empty.Parse({"list", "d", "--kind=", "--ranks", "7"}).code, 64) << "kind is empty";
  Tool swallowed;
  EXPECT_THAT(swallowed.Parse({"show", "--to=", "--rank"}).err, HasSubstr("unknown option --rank"));
  Tool kept;
  EXPECT_FALSE(kept.Parse({"show", "--to="}).code.has_value());
}

}  // namespace
}  // namespace dtrain::command_line_test
