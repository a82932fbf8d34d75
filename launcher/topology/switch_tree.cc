#include "launcher/topology/switch_tree.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/job_env.h"
#include "base/status.h"

namespace dtrain::launcher {
namespace {

constexpr int kSwitchesMax = 65536;

struct SwitchLine {
  std::string name;
  std::string switches;
  std::string nodes;
};

absl::Status BadLine(absl::string_view file, int line, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(file, ":", line, ": ", what));
}

// Reads one line of the file. A line without a name is empty or about something else.
absl::StatusOr<SwitchLine> ReadSwitchLine(absl::string_view text) {
  SwitchLine line;
  for (const absl::string_view word :
       absl::StrSplit(text, absl::ByAnyChar(" \t\r"), absl::SkipEmpty())) {
    const std::vector<std::string> pair = absl::StrSplit(word, absl::MaxSplits('=', 1));
    if (pair.size() != 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", word, "\"; allowed: KEY=VALUE, such as SwitchName=s1 Nodes=n[1-4]"));
    }
    const std::string key = absl::AsciiStrToLower(pair[0]);
    if (key == "switchname" || key == "blockname") {
      line.name = pair[1];
    } else if (key == "switches") {
      line.switches = pair[1];
    } else if (key == "nodes") {
      line.nodes = pair[1];
    }
  }
  if (line.name.empty() && !(line.switches.empty() && line.nodes.empty())) {
    return absl::InvalidArgumentError("a line with Switches or Nodes needs SwitchName=NAME");
  }
  return line;
}

// The addresses of a file that has nothing else, one for each line, some of them empty; none when
// it has pairs KEY=VALUE.
absl::StatusOr<std::vector<NodeAddress>> ReadAddresses(absl::string_view text,
                                                       absl::string_view file) {
  std::vector<NodeAddress> addresses;
  bool has_any = false;
  int number = 0;
  for (const absl::string_view whole : absl::StrSplit(text, '\n')) {
    ++number;
    const absl::string_view line = absl::StripAsciiWhitespace(whole.substr(0, whole.find('#')));
    if (absl::StrContains(line, '=')) {
      return std::vector<NodeAddress>();
    }
    const std::pair<absl::string_view, absl::string_view> words =
        absl::StrSplit(line, absl::MaxSplits(absl::ByAnyChar(" \t"), 1));
    auto address = line.empty() ? absl::StatusOr<NodeAddress>(NodeAddress())
                                : ParseNodeAddress(words.first, words.second);
    if (!address.ok()) {
      return BadLine(file, number, address.status().message());
    }
    has_any = has_any || !line.empty();
    addresses.push_back(*std::move(address));
  }
  return has_any ? addresses : std::vector<NodeAddress>();
}

}  // namespace

size_t SwitchTree::Add(const std::string& name) {
  const auto [found, is_new] = by_name_.emplace(name, switches_.size());
  if (is_new) {
    switches_.push_back({name, "", {}, 0});
  }
  return found->second;
}

absl::StatusOr<SwitchTree> SwitchTree::OfAddresses(const std::vector<NodeAddress>& addresses,
                                                   absl::string_view source) {
  SwitchTree tree;
  std::vector<std::pair<int, std::vector<std::string>>> children;
  int number = 0;
  for (const NodeAddress& address : addresses) {
    ++number;
    if (address.node.empty()) {
      continue;
    }
    if (address.switches.empty()) {
      return BadLine(source, number, absl::StrCat("node ", address.node, " has no switch"));
    }
    for (size_t i = 0; i < address.switches.size(); ++i) {
      const size_t at = tree.Add(address.switches[i]);
      children.resize(tree.switches_.size());
      if (i > 0) {
        auto& [line, names] = children[tree.Add(address.switches[i - 1])];
        line = number;
        if (std::count(names.begin(), names.end(), address.switches[i]) == 0) {
          names.push_back(address.switches[i]);
        }
      }
      if (i + 1 == address.switches.size()) {
        if (!tree.leaf_of_node_.emplace(address.node, at).second) {
          return BadLine(source, number, absl::StrCat("node ", address.node, " is there twice"));
        }
        tree.switches_[at].nodes.push_back(address.node);
      }
    }
    if (static_cast<int>(tree.switches_.size()) > kSwitchesMax) {
      return BadLine(source, number, absl::StrCat("more than ", kSwitchesMax, " switches"));
    }
  }
  if (tree.switches_.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(source, " has no address of a node"));
  }
  DT_RETURN_IF_ERROR(tree.Link(source, children));
  return tree;
}

absl::StatusOr<SwitchTree> SwitchTree::Parse(absl::string_view text, absl::string_view file) {
  DT_ASSIGN_OR_RETURN(const std::vector<NodeAddress> addresses, ReadAddresses(text, file));
  if (!addresses.empty()) {
    return OfAddresses(addresses, file);
  }
  SwitchTree tree;
  std::vector<std::pair<int, std::vector<std::string>>> children;  // By switch, with its line.
  int number = 0;
  for (const absl::string_view whole : absl::StrSplit(text, '\n')) {
    ++number;
    const auto line = ReadSwitchLine(whole.substr(0, whole.find('#')));
    if (!line.ok()) {
      return BadLine(file, number, line.status().message());
    }
    if (line->name.empty()) {
      continue;
    }
    if (static_cast<int>(tree.switches_.size()) >= kSwitchesMax) {
      return BadLine(file, number, absl::StrCat("more than ", kSwitchesMax, " switches"));
    }
    if (!tree.by_name_.emplace(line->name, tree.switches_.size()).second) {
      return BadLine(file, number, absl::StrCat("switch ", line->name, " is listed twice"));
    }
    const auto below = ExpandHostList(line->switches);
    auto nodes = ExpandHostList(line->nodes);
    if (!below.ok() || !nodes.ok()) {
      return BadLine(file, number, (below.ok() ? nodes.status() : below.status()).message());
    }
    for (const std::string& node : *nodes) {
      if (!tree.leaf_of_node_.emplace(node, tree.switches_.size()).second) {
        return BadLine(file, number, absl::StrCat("node ", node, " is at two switches"));
      }
    }
    tree.switches_.push_back({line->name, "", *std::move(nodes), 0});
    children.emplace_back(number, *below);
  }
  if (tree.switches_.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, " names no switch; a line is: SwitchName=s1 Nodes=n[1-4]"));
  }
  DT_RETURN_IF_ERROR(tree.Link(file, children));
  return tree;
}

// Sets parents and depths. Each switch is below one other at most, so what no walk from a root
// reaches is a circle.
absl::Status SwitchTree::Link(
    absl::string_view file, const std::vector<std::pair<int, std::vector<std::string>>>& children) {
  std::vector<std::vector<size_t>> below(switches_.size());
  for (size_t i = 0; i < switches_.size(); ++i) {
    for (const std::string& name : children[i].second) {
      const auto child = by_name_.find(name);
      if (child == by_name_.end()) {
        return BadLine(file, children[i].first, absl::StrCat("unknown switch ", name));
      }
      std::string& parent = switches_[child->second].parent;
      if (!parent.empty()) {
        return BadLine(file, children[i].first,
                       absl::StrCat("switch ", name, " is below two others, ", parent, " and ",
                                    switches_[i].name));
      }
      parent = switches_[i].name;
      below[i].push_back(child->second);
    }
  }
  std::vector<size_t> to_visit;
  for (size_t i = switches_.size(); i-- > 0;) {
    if (switches_[i].parent.empty()) {
      to_visit.push_back(i);
    }
  }
  while (!to_visit.empty()) {
    const size_t at = to_visit.back();
    to_visit.pop_back();
    walk_.push_back(at);
    for (size_t i = below[at].size(); i-- > 0;) {
      switches_[below[at][i]].depth = switches_[at].depth + 1;
      to_visit.push_back(below[at][i]);
    }
  }
  if (walk_.size() < switches_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": some of its switches are below one another in a circle"));
  }
  return absl::OkStatus();
}

std::vector<Switch> SwitchTree::Walk() const {
  std::vector<Switch> walk;
  for (const size_t at : walk_) {
    walk.push_back(switches_[at]);
  }
  return walk;
}

// The switches from the root down.
std::vector<size_t> SwitchTree::PathOf(const std::string& node) const {
  std::vector<size_t> path;
  const auto leaf = leaf_of_node_.find(node);
  if (leaf == leaf_of_node_.end()) {
    return path;
  }
  path.push_back(leaf->second);
  while (!switches_[path.back()].parent.empty()) {
    path.push_back(by_name_.at(switches_[path.back()].parent));
  }
  std::reverse(path.begin(), path.end());
  return path;
}

std::string SwitchTree::AddressOf(const std::string& node) const {
  std::vector<std::string> names;
  for (const size_t at : PathOf(node)) {
    names.push_back(switches_[at].name);
  }
  return absl::StrJoin(names, ".");
}

std::vector<size_t> SwitchTree::Order(const std::vector<std::string>& nodes) const {
  // By switch: the first place at which a node below it stands.
  std::vector<size_t> first(switches_.size(), nodes.size());
  std::vector<std::vector<size_t>> keys(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    keys[i] = PathOf(nodes[i]);
    for (const size_t at : keys[i]) {
      first[at] = std::min(first[at], i);
    }
  }
  for (std::vector<size_t>& key : keys) {
    std::transform(key.begin(), key.end(), key.begin(), [&first](size_t at) { return first[at]; });
  }
  std::vector<size_t> order(nodes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&keys](size_t a, size_t b) {
    if (keys[a].empty() || keys[b].empty()) {
      return !keys[a].empty() && keys[b].empty();
    }
    return keys[a] < keys[b];
  });
  return order;
}

}  // namespace dtrain::launcher
