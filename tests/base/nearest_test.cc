#include "base/text/nearest.h"

#include "gtest/gtest.h"

namespace dtrain::nearest_test {
namespace {

TEST(EditDistance, CountsAnExchangeOfNeighboursOnce) {
  EXPECT_EQ(EditDistance("", "abc"), 3U);
  EXPECT_EQ(EditDistance("steps", "steps"), 0U);
  EXPECT_EQ(EditDistance("trian", "train"), 1U);
  EXPECT_EQ(EditDistance("comn", "comm"), 1U);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3U);
  EXPECT_EQ(EditDistance("stxeps", "steps"), 1U);
  EXPECT_EQ(EditDistance("steps", "stxeps"), 1U);
}

TEST(Nearest, FindsTyposOnly) {
  EXPECT_EQ(Nearest("nproc-per-nod", {"nnodes", "nproc-per-node"}), "nproc-per-node");
  EXPECT_EQ(Nearest("lst", {"list", "show", "verify"}), "list");
  EXPECT_EQ(Nearest("entirely-else", {"nnodes", "nproc-per-node"}), "");
  EXPECT_EQ(Nearest("x", {"ab"}), "") << "shares no letter";
  EXPECT_EQ(Nearest(std::string(100000, 'x'), {"list"}), "");  // The time is bounded.
}

// "ema" is another name, "ltr" a typing error.
TEST(Nearest, AReplacedLetterMakesAnotherWordOfThree) {
  EXPECT_EQ(Nearest("ema", {"eta", "loss"}), "");
  EXPECT_EQ(Nearest("tea", {"eta", "loss"}), "eta");
  EXPECT_EQ(Nearest("ea", {"eta", "loss"}), "eta");
  EXPECT_EQ(Nearest("lass", {"eta", "loss"}), "loss");
}

TEST(Misspelt, LeavesNamesAloneThatMayBeRight) {
  const std::vector<std::string> names = {"eta", "loss", "mfu", "grad_norm"};
  for (const char* const own : {"ema", "mse", "map", "loss", "norm", ""}) {
    EXPECT_EQ(Misspelt(own, names), "") << own;
  }
  EXPECT_EQ(Misspelt("los", names), "loss");
  EXPECT_EQ(Misspelt("muf", names), "mfu");
  EXPECT_EQ(Misspelt("grad_nrom", names), "grad_norm");
}

TEST(UnknownOption, NamesTheNearest) {
  EXPECT_EQ(UnknownOption("--rank", {"--ranks", "--json"}),
            "unknown option --rank; did you mean --ranks?");
  EXPECT_EQ(UnknownOption("-ranks", {"ranks", "json"}),
            "unknown option -ranks; did you mean --ranks?");
  EXPECT_EQ(UnknownOption("-x", {"--dx"}), "unknown option -x");
  EXPECT_EQ(UnknownOption("--", {"--dx"}), "unknown option --");
}

TEST(UnknownCommand, NamesTheNearestAndListsAll) {
  EXPECT_EQ(UnknownCommand("", "lst", {"list", "show", "verify"}),
            "unknown command lst; did you mean list? There are: list, show, verify");
  EXPECT_EQ(
      UnknownCommand("bench ", "comn", {"comm", "mfu"}),
      "unknown command bench comn; did you mean bench comm? There are: bench comm, bench mfu");
  EXPECT_EQ(UnknownCommand("", "frobnicate", {"list", "show"}),
            "unknown command frobnicate; there are: list, show");
}

}  // namespace
}  // namespace dtrain::nearest_test
