#include "launcher/nodes/node_tree.h"

#include <cstdint>

namespace dtrain::launcher {

std::vector<int> NodesBelow(int node, int nodes) {
  std::vector<int> below;
  for (int64_t digit = 1; digit < nodes && node % digit == 0; digit *= kTreeFanOut) {
    if (node % (digit * kTreeFanOut) != 0) {
      break;  // Its own digit: a higher number of it is a sibling.
    }
    for (int64_t other = node + digit; other < nodes && other < node + digit * kTreeFanOut;
         other += digit) {
      below.push_back(static_cast<int>(other));
    }
  }
  return below;
}

}  // namespace dtrain::launcher
