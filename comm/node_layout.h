// Which ranks of a group share a node. Pure.
#pragma once

#include <string>
#include <vector>

namespace dtrain::comm {

struct NodeLayout {
  int nodes = 0;
  bool even = false;         // As many ranks on each node.
  bool consecutive = false;  // The ranks of every node follow each other.
  std::vector<int> local;    // The ranks of this rank's node, in order.
  // How many ranks the nodes before each have, and all: [nodes + 1]; nodes in the order of their
  // first ranks, as everywhere here.
  std::vector<int> node_starts = {0};
  int node = 0;   // This rank's.
  int place = 0;  // Where in `local` this rank is.
  int lanes = 0;  // How many places every node has: the smallest one's ranks.
  // The ranks with this rank's place in `local`, node by node; none where a node has no such place.
  std::vector<int> across;
  // Even only: `across` of every rank in `local`, in its order.
  std::vector<std::vector<int>> places;
};

// `node_ids` by rank.
NodeLayout LayOutNodes(const std::vector<std::string>& node_ids, int rank);

}  // namespace dtrain::comm
