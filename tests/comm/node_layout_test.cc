#include "comm/node_layout.h"

#include <gtest/gtest.h>

namespace dtrain::comm {
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
}

TEST(NodeLayoutTest, UnevenNodesHaveNothingAcross) {
  const NodeLayout layout = LayOutNodes({"a", "a", "b"}, 2);
  EXPECT_EQ(layout.nodes, 2);
  EXPECT_FALSE(layout.even);
  EXPECT_EQ(layout.local, (Ranks{2}));
  EXPECT_TRUE(layout.across.empty());
}

}  // namespace
}  // namespace dtrain::comm
