#include "comm/node_layout.h"

#include <gtest/gtest.h>

namespace dtrain::comm::node_layout_test {
namespace {

using Ranks = std::vector<int>;

TEST(NodeLayoutTest, RanksOfOneNodeAreLocal) {
  const NodeLayout layout = LayOutNodes({"a", "a", "a"}, 1);
  EXPECT_EQ(layout.nodes, 1);
  EXPECT_TRUE(layout.even);
  EXPECT_EQ(layout.local, (Ranks{0, 1, 2}));
  EXPECT_EQ(layout.across, (Ranks{1}));
}

TEST(NodeLayoutTest, TheSamePlaceOnEachNodeIsAcross) {
  const NodeLayout layout = LayOutNodes({"a", "a", "b", "b", "c", "c"}, 3);
  EXPECT_EQ(layout.nodes, 3);
  EXPECT_EQ(layout.local, (Ranks{2, 3}));
  EXPECT_EQ(layout.across, (Ranks{1, 3, 5}));
  EXPECT_EQ(layout.places, (std::vector<Ranks>{{0, 2, 4}, {1, 3, 5}}));
}

TEST(NodeLayoutTest, RanksMayAlternateBetweenNodes) {
  const NodeLayout layout = LayOutNodes({"b", "a", "b", "a"}, 2);
  EXPECT_EQ(layout.local, (Ranks{0, 2}));
  EXPECT_EQ(layout.across, (Ranks{2, 3}));
  EXPECT_TRUE(layout.even);
  EXPECT_FALSE(layout.consecutive);
}

TEST(NodeLayoutTest, UnevenNodesHaveAsManyLanesAsTheSmallestHasRanks) {
  const std::vector<std::string> nodes = {"a", "a", "a", "b", "b", "c", "c", "c"};
  const NodeLayout layout = LayOutNodes(nodes, 6);
  EXPECT_EQ(layout.nodes, 3);
  EXPECT_FALSE(layout.even);
  EXPECT_TRUE(layout.consecutive);
  EXPECT_EQ(layout.local, (Ranks{5, 6, 7}));
  EXPECT_EQ(layout.node_starts, (Ranks{0, 3, 5, 8}));
  EXPECT_EQ(layout.node, 2);
  EXPECT_EQ(layout.place, 1);
  EXPECT_EQ(layout.lanes, 2);
  EXPECT_EQ(layout.across, (Ranks{1, 4, 6}));
  EXPECT_TRUE(LayOutNodes(nodes, 2).across.empty()) << "node b has no third rank";
}

TEST(NodeLayoutTest, SaysWhetherTheRanksOfEveryNodeFollowEachOther) {
  EXPECT_TRUE(LayOutNodes({"a", "b", "b"}, 0).consecutive);
  EXPECT_FALSE(LayOutNodes({"a", "b", "a"}, 1).consecutive);
  EXPECT_FALSE(LayOutNodes({"a", "b", "b", "a", "c"}, 4).consecutive);
}

}  // namespace
}  // namespace dtrain::comm::node_layout_test
