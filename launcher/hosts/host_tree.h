// Which hosts start which over ssh, when there are more than one host starts alone. Pure function.
#pragma once

#include <vector>

namespace dtrain::launcher {

// With more hosts than this, `dtrain launch --hostfile` starts them as a tree.
inline constexpr int kSshFanout = 64;

// Where a host stands in the tree.
struct TreePlace {
  int parent = -1;  // The number of the host that starts it; -1: the one of the command does.
  int hops = 1;     // Connections of ssh from the command to it.
};

// The places of hosts 0 to count - 1. The hosts are cut into `fanout` runs of neighbours, whose
// lengths differ by one at most: the first of each run is started from here and starts the rest of
// its run in the same way. No host starts more than `fanout` others, and a host's parent has a
// smaller number. All are started from here if there are at most `fanout`, or if that is 0.
// REQUIRES: fanout is not 1 and not negative.
std::vector<TreePlace> SplitIntoTree(int count, int fanout);

}  // namespace dtrain::launcher
