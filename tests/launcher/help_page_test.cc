#include "launcher/commands/help_page.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/commands/catalog.h"
#include "launcher/commands/completion.h"

namespace dtrain::launcher::help_page_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kHelp[] =
    "Shows what is there. It changes\n"
    "nothing.\n"
    "\n"
    "Usage: dtrain look [options]\n"
    "         [--] COMMAND\n"
    "\n"
    "Options:\n"
    "  -h, --help                Print this help message and exit.\n"
    "  -t, --tee STREAMS         Show the output: 1 shows\n"
    "                            stdout. Default: 0.\n"
    "  --rdzv-endpoint HOST:PORT\n"
    "                            Address of node 0.\n"
    "  -n LINES                  Lines.\n"
    "\n"
    "Commands:\n"
    "  list                      List all\n"
    "  look deep                 Look more\n"
    "\n"
    ".DIR is a folder, or 'x\\y'.\n"
    "\n"
    "Examples:\n"
    "  dtrain look -n 3    as a start\n";

TEST(ParseHelp, TakesTheTextApart) {
  const HelpPage page = ParseHelp(kHelp);
  EXPECT_EQ(page.description, "Shows what is there. It changes nothing.");
  EXPECT_EQ(page.usage, "dtrain look [options] [--] COMMAND");
  const auto options = page.RowsOf("Options");
  ASSERT_EQ(options.size(), 4U);
  EXPECT_EQ(options[1].name, "-t, --tee STREAMS");
  EXPECT_EQ(options[1].text, "Show the output: 1 shows stdout. Default: 0.");
  EXPECT_EQ(options[2].name, "--rdzv-endpoint HOST:PORT");
  EXPECT_EQ(options[2].text, "Address of node 0.");
  EXPECT_THAT(OptionsOf(options[1]), ElementsAre("-t", "--tee"));
  EXPECT_THAT(OptionsOf(options[3]), ElementsAre("-n"));
  ASSERT_EQ(page.sections.size(), 4U);
  EXPECT_THAT(page.sections[2].lines, ElementsAre(".DIR is a folder, or 'x\\y'."));
  EXPECT_EQ(page.sections[3].title, "Examples");
  EXPECT_THAT(page.sections[3].lines, ElementsAre("  dtrain look -n 3    as a start"));
}

TEST(ParseHelp, ReadsTheOverviewAndAGroup) {
  const auto commands = AllCommands({"bench-comm", "bench-mfu"});
  const HelpPage group = ParseHelp(GroupText("bench", commands));
  EXPECT_THAT(Completions(group, ""), ElementsAre("comm", "mfu"));
  const HelpPage overview = ParseHelp(OverviewText({"plan"}));
  EXPECT_THAT(overview.description, HasSubstr("Trains models on many ranks"));
  ASSERT_FALSE(overview.RowsOf("Train").empty());
  EXPECT_EQ(overview.RowsOf("Train")[1].name, "launch");
}

TEST(ParseHelp, EverySectionOfTheOverviewHasRows) {
  const HelpPage overview =
      ParseHelp(OverviewText({"bench-comm", "config", "eval", "generate", "gpt", "mine"}));
  std::vector<std::string> titles;
  for (const HelpSection& section : overview.sections) {
    if (!section.title.empty() && section.title != "Examples") {
      titles.push_back(section.title);
      EXPECT_FALSE(section.rows.empty()) << section.title;
    }
  }
  EXPECT_EQ(titles.size(), 7U);
  EXPECT_EQ(overview.RowsOf("Use a trained model").size(), 2U);
}

TEST(ManPage, EscapesWhatRoffReads) {
  const std::string page = ManPage("dtrain-look", "1.2", ParseHelp(kHelp));
  EXPECT_THAT(page, AllOf(HasSubstr(".TH DTRAIN-LOOK 1 \"\" \"dtrain 1.2\" \"dtrain\"\n"),
                          HasSubstr("dtrain\\-look \\- Shows what is there\n"),
                          HasSubstr(".SH \"OPTIONS\"\n.TP\n.B \\-h, \\-\\-help\nPrint this"),
                          HasSubstr("\\&.DIR is a folder, or 'x\\(rsy'.\n"),
                          HasSubstr("  dtrain look \\-n 3    as a start\n")));
}

std::string HelpOfTree(const std::vector<std::string>& command) {
  if (command == std::vector<std::string>{"look"}) {
    return kHelp;
  }
  if (command == std::vector<std::string>{"look", "list"}) {
    return "Lists.\n\nUsage: dtrain look list [options]\n\nOptions:\n  --json    As JSON.\n";
  }
  if (command == std::vector<std::string>{"launch"}) {
    return "Starts.\n\nUsage: x\n\nOptions:\n  --nnodes N    Nodes.\n  --no-bind    Not.\n";
  }
  return "";
}

std::vector<std::string> CompletionsOf(const std::vector<std::string>& words) {
  return Complete(words, {{"launch", ""}, {"look", ""}, {"bench comm", ""}}, HelpOfTree);
}

TEST(Complete, OffersCommandsThenOptions) {
  EXPECT_THAT(CompletionsOf({"l"}), ElementsAre("launch", "look"));
  EXPECT_THAT(CompletionsOf({""}), ElementsAre("launch", "look", "bench", "help"));
  EXPECT_THAT(CompletionsOf({"--v"}), ElementsAre("--version"));
  EXPECT_THAT(CompletionsOf({"help", "lo"}), ElementsAre("look"));
  EXPECT_THAT(CompletionsOf({"look", "--t"}), ElementsAre("--tee"));
  EXPECT_THAT(CompletionsOf({"look", "-"}), AllOf(Contains("-n"), Contains("--rdzv-endpoint")));
  EXPECT_THAT(CompletionsOf({"look", "-t", "3", "li"}), ElementsAre("list"));
  EXPECT_THAT(CompletionsOf({"look", "list", "--"}), ElementsAre("--json"));
}

TEST(Complete, LeavesValuesAndAProgramsWordsAlone) {
  EXPECT_THAT(CompletionsOf({"look", "--tee", ""}), IsEmpty()) << "a value";
  EXPECT_THAT(CompletionsOf({"look", "--tee=3", "li"}), ElementsAre("list"));
  EXPECT_THAT(CompletionsOf({"launch", "--nnodes", "2", "--n"}),
              ElementsAre("--nnodes", "--no-bind"));
  EXPECT_THAT(CompletionsOf({"launch", "--no-bind", "./prog", "--n"}), IsEmpty());
  EXPECT_THAT(CompletionsOf({"launch", "--", "--n"}), IsEmpty());
  EXPECT_THAT(CompletionsOf({"nosuch", "-"}), IsEmpty());
}

TEST(CompletionScript, IsThereForTwoShells) {
  EXPECT_THAT(CompletionScript("bash"), HasSubstr("complete -o bashdefault"));
  EXPECT_THAT(CompletionScript("zsh"), HasSubstr("#compdef dtrain"));
  EXPECT_THAT(CompletionScript("fish"), IsEmpty());
  EXPECT_THAT(CompletionScript("bash"), Not(HasSubstr("eval")));
}

}  // namespace
}  // namespace dtrain::launcher::help_page_test
