#include "comm/node_layout.h"

#include <algorithm>
#include <utility>

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
  layout.node = static_cast<int>(own);
  layout.local = nodes.at(own);
  layout.place = static_cast<int>(std::find(layout.local.begin(), layout.local.end(), rank) -
                                  layout.local.begin());
  layout.lanes = static_cast<int>(layout.local.size());
  layout.even = layout.consecutive = true;
  for (const std::vector<int>& ranks : nodes) {
    const auto size = static_cast<int>(ranks.size());
    layout.node_starts.push_back(layout.node_starts.back() + size);
    layout.lanes = std::min(layout.lanes, size);
    layout.even = layout.even && ranks.size() == layout.local.size();
    layout.consecutive = layout.consecutive && ranks.back() - ranks.front() == size - 1;
  }
  std::vector<std::vector<int>> places(static_cast<size_t>(layout.lanes));
  for (const std::vector<int>& ranks : nodes) {
    for (size_t place = 0; place < places.size(); ++place) {
      places[place].push_back(ranks[place]);
    }
  }
  if (layout.place < layout.lanes) {
    layout.across = places[static_cast<size_t>(layout.place)];
  }
  if (layout.even) {
    layout.places = std::move(places);
  }
  return layout;
}

}  // namespace dtrain::comm
