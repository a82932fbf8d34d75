#include "launcher/nodes/world_choice.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::launcher::world_choice_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

WorldRequest Request(const std::vector<int>& ranks, int low, int high, BatchSizes batch = {}) {
  WorldRequest request{{}, low, high, batch};
  for (size_t node = 0; node < ranks.size(); ++node) {
    request.nodes.push_back({"node " + std::to_string(node), ranks[node]});
  }
  return request;
}

TEST(WorldChoice, TakesAllUpToTheMaximum) {
  EXPECT_EQ(ChooseWorld(Request({1, 1, 1}, 2, 4)).nodes, 3);
  EXPECT_EQ(ChooseWorld(Request({1, 1, 1, 1, 1, 1}, 2, 4)).nodes, 4);
  EXPECT_EQ(ChooseWorld(Request({1, 1, 1}, 2, 4)).note, "");
}

TEST(WorldChoice, FewerThanTheMinimumAreNone) {
  EXPECT_EQ(ChooseWorld(Request({1}, 2, 4)).nodes, 0);
  EXPECT_EQ(ChooseWorld(Request({}, 1, 4)).nodes, 0);
  EXPECT_EQ(ChooseWorld(Request({1}, 2, 4)).note, "");
}

TEST(WorldChoice, WhatDoesNotDivideIsRefusedByNameAndTheNextSmallerOneTrains) {
  const WorldChoice choice = ChooseWorld(Request({1, 1, 1, 1, 1}, 1, 5, {12, 2}));
  EXPECT_EQ(choice.nodes, 3) << "12 / 2 = 6 micro-batches";
  EXPECT_EQ(choice.note,
            "5 nodes with 5 ranks are refused: train_batch_size 12 is not a multiple of "
            "micro-batch 2 x 5 ranks = 10; 3 nodes with 3 ranks train, idle: node 3, node 4");
}

TEST(WorldChoice, NodesMayDifferInTheirRanks) {
  EXPECT_EQ(ChooseWorld(Request({2, 4, 2}, 1, 3, {16, 1})).nodes, 3);
  EXPECT_EQ(ChooseWorld(Request({2, 4, 3}, 1, 3, {18, 1})).nodes, 3) << "9 ranks";
  EXPECT_EQ(ChooseWorld(Request({2, 4, 2}, 1, 3, {18, 1})).nodes, 2) << "6 ranks";
}

TEST(WorldChoice, WhereNothingDividesNothingTrains) {
  const WorldChoice choice = ChooseWorld(Request({1, 1, 1}, 2, 3, {7, 1}));
  EXPECT_EQ(choice.nodes, 0);
  EXPECT_THAT(choice.note, AllOf(HasSubstr("3 nodes with 3 ranks are refused"),
                                 HasSubstr("no smaller number of nodes from 2 on divides it")));
}

TEST(WorldChoice, TheChosenWorldAlwaysDividesAndNoLargerOneDoes) {
  for (int64_t global = 1; global <= 64; ++global) {
    for (int nodes = 1; nodes <= 9; ++nodes) {
      const BatchSizes batch{global, 1};
      const int chosen =
          ChooseWorld(Request(std::vector<int>(static_cast<size_t>(nodes), 1), 1, 8, batch)).nodes;
      ASSERT_GE(chosen, 1) << "one rank always divides";
      EXPECT_EQ(global % chosen, 0);
      for (int larger = chosen + 1; larger <= std::min(nodes, 8); ++larger) {
        EXPECT_NE(global % larger, 0) << global << " by " << larger;
      }
    }
  }
}

}  // namespace
}  // namespace dtrain::launcher::world_choice_test
