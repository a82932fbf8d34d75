// The tree in which agents tell each other of their ranks: above 64 nodes, some nodes gather what
// those below them say and pass it on as one message. Pure.
//
// Nodes are numbered as the ranks are, so neighbours share a switch where the rank plan knows it. A
// node is below the one that has its number with the last digit that is not zero, to the base of
// 64, set to zero: 130 is below 128, and 128 below 0.
#pragma once

#include <vector>

namespace dtrain::launcher {

inline constexpr int kTreeFanOut = 64;

// The nodes directly below `node` in a job of that many, in order.
std::vector<int> NodesBelow(int node, int nodes);

}  // namespace dtrain::launcher
