// Which ranks of a group share a node. Pure.
#pragma once

#include <string>
#include <vector>

namespace dtrain::comm {

struct NodeLayout {
  int nodes = 0;
  bool even = false;        // As many ranks on each node.
  std::vector<int> local;   // The ranks of this rank's node, in order.
  std::vector<int> across;  // Even only: the ranks with this rank's place in `local`, node by node,
                            // nodes in the order of their first ranks.
  // Even only: `across` of every rank in `local`, in its order.
  std::vector<std::vector<int>> places;
};

// `node_ids` by rank.
NodeLayout LayOutNodes(const std::vector<std::string>& node_ids, int rank);

}  // namespace dtrain::comm
