#include "base/nearest.h"

#include "gtest/gtest.h"

namespace dtrain::nearest_test {
namespace {

TEST(EditDistance, CountsAnExchangeOfNeighboursOnce) {
  EXPECT_EQ(EditDistance("", "abc"), 3U);
  EXPECT_EQ(EditDistance("steps", "steps"), 0U);
  EXPECT_EQ(EditDistance("trian", "train"), 1U);
  EXPECT_EQ(EditDistance("comn", "comm"), 1U);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3U);
}

TEST(Nearest, FindsTyposOnly) {
  EXPECT_EQ(Nearest("nproc-per-nod", {"nnodes", "nproc-per-node"}), "nproc-per-node");
  EXPECT_EQ(Nearest("lst", {"list", "show", "verify"}), "list");
  EXPECT_EQ(Nearest("entirely-else", {"nnodes", "nproc-per-node"}), "");
  EXPECT_EQ(Nearest("x", {"ab"}), "") << "shares no letter";
  EXPECT_EQ(Nearest(std::string(100000, 'x'), {"list"}), "");  // In bounded time.
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
