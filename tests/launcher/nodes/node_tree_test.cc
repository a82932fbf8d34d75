#include "launcher/nodes/node_tree.h"

#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::launcher::node_tree_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(NodeTree, UpTo64NodesAreDirectlyBelowTheFirst) {
  EXPECT_EQ(NodesBelow(0, 64).size(), 63U);
  EXPECT_THAT(NodesBelow(0, 3), ElementsAre(1, 2));
  EXPECT_THAT(NodesBelow(63, 64), IsEmpty());
  EXPECT_THAT(NodesBelow(0, 1), IsEmpty());
}

TEST(NodeTree, AboveThatEvery64thGathersForTheFollowing) {
  EXPECT_THAT(NodesBelow(64, 67), ElementsAre(65, 66));
  EXPECT_EQ(NodesBelow(0, 2048).size(), 63U + 31U);
  EXPECT_EQ(NodesBelow(128, 2048).size(), 63U);
  EXPECT_THAT(NodesBelow(4096 + 64, 4163), ElementsAre(4161, 4162));
}

TEST(NodeTree, EveryNodeIsBelowExactlyOne) {
  for (const int nodes : {1, 2, 64, 65, 129, 2048, 5000}) {
    std::set<int> seen;
    size_t count = 0;
    for (int node = 0; node < nodes; ++node) {
      const std::vector<int> below = NodesBelow(node, nodes);
      count += below.size();
      EXPECT_LE(below.size(), 63U * 3);
      seen.insert(below.begin(), below.end());
    }
    EXPECT_EQ(count, static_cast<size_t>(nodes - 1));
    EXPECT_EQ(seen.size(), count);
  }
}

}  // namespace
}  // namespace dtrain::launcher::node_tree_test
