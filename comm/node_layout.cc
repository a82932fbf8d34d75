#include "comm/node_layout.h"

#include <algorithm>

namespace dtrain::comm {

NodeLayout LayOutNodes(const std::vector<std::string>& node_ids, int rank) {
  std::vector<std::vector<int>> nodes;
  size_t own = 0;
  for (size_t i = 0; i < node_ids.size(); ++i) {
    const auto same = [&](const std::vector<int>& ranks) {
      return node_ids[static_cast<size_t>(ranks[0])] == node_ids[i];
    };
    auto node = std::find_if(nodes.begin(), nodes.end(), same);
    if (node == nodes.end()) {
      node = nodes.insert(nodes.end(), std::vector<int>());
    }
    node->push_back(static_cast<int>(i));
    if (static_cast<int>(i) == rank) {
      own = static_cast<size_t>(node - nodes.begin());
    }
  }
  NodeLayout layout;
  layout.nodes = static_cast<int>(nodes.size());
  layout.local = nodes.at(own);
  layout.even = std::all_of(nodes.begin(), nodes.end(), [&](const std::vector<int>& ranks) {
    return ranks.size() == layout.local.size();
  });
  if (layout.even) {
    layout.places.resize(layout.local.size());
    for (const std::vector<int>& ranks : nodes) {
      for (size_t place = 0; place < ranks.size(); ++place) {
        layout.places[place].push_back(ranks[place]);
      }
    }
    layout.across = layout.places[static_cast<size_t>(
        std::find(layout.local.begin(), layout.local.end(), rank) - layout.local.begin())];
  }
  return layout;
}

}  // namespace dtrain::comm
