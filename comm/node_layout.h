// The division of a group's ranks among nodes. Pure.
#pragma once

#include <string>
#include <vector>

namespace dtrain::comm {

struct NodeLayout {
  int nodes = 0;
  bool even = false;         // Every node has the same number of ranks.
  bool consecutive = false;  // The ranks of every node are consecutive.
  std::vector<int> local;    // The ranks of this rank's node, in order.
  // [nodes + 1]: for each node the number of ranks on the nodes before it, then the number of all
  // ranks. Nodes are always in the order of their first ranks.
  std::vector<int> node_starts = {0};
  int node = 0;   // This rank's node.
  int place = 0;  // This rank's index in `local`.
  int lanes = 0;  // The number of ranks on the smallest node.
  // The ranks that have this rank's place on their nodes, node by node; empty if some node has no
  // such place.
  std::vector<int> across;
  // Even only: `across` of every rank in `local`, in its order.
  std::vector<std::vector<int>> places;
};

// `node_ids` by rank.
NodeLayout LayOutNodes(const std::vector<std::string>& node_ids, int rank);

}  // namespace dtrain::comm
