// The tree of network switches over the nodes of a cluster, and the order of nodes by it. Pure.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/topology/node_address.h"

namespace dtrain::launcher {

struct Switch {
  std::string name;
  std::string parent;              // "": a root.
  std::vector<std::string> nodes;  // Nodes that are connected to it directly.
  int depth = 0;                   // 0: a root.
};

class SwitchTree {
 public:
  // Reads Slurm's topology.conf: lines "SwitchName=S Switches=LIST" and "SwitchName=S Nodes=LIST"
  // of topology/tree, and "BlockName=B Nodes=LIST" of topology/block, with Slurm's host lists.
  // Comments and other keys are skipped. Errors (InvalidArgument) begin with FILE:LINE: a line of
  // another form, a switch or node twice, an unknown switch, or switches in a circle.
  // A file whose lines are addresses of nodes, such as those of SLURM_TOPOLOGY_ADDR on each node
  // (node_address.h), is read too; behind each may stand its pattern.
  static absl::StatusOr<SwitchTree> Parse(absl::string_view text, absl::string_view file);
  // The tree above nodes whose addresses are known; one without a node is left out.
  // InvalidArgument: a switch is below two others, or a node has two addresses or no switch.
  static absl::StatusOr<SwitchTree> OfAddresses(const std::vector<NodeAddress>& addresses,
                                                absl::string_view source);

  // In the order of a walk of the tree, children in the file's order.
  std::vector<Switch> Walk() const;
  // The switches from the root down to the node's, as in SLURM_TOPOLOGY_ADDR: "spine.leaf1". ""
  // when the file does not name the node.
  std::string AddressOf(const std::string& node) const;
  // Places in `nodes`, so that nodes of one switch are neighbours and their switches too. The
  // switches come as their first nodes do in `nodes`, so a list that is in order stays as it is.
  // Nodes that the file does not name come last.
  std::vector<size_t> Order(const std::vector<std::string>& nodes) const;

 private:
  absl::Status Link(absl::string_view file,
                    const std::vector<std::pair<int, std::vector<std::string>>>& children);
  // The place of the switch, which is new unless it is there.
  size_t Add(const std::string& name);
  std::vector<size_t> PathOf(const std::string& node) const;

  std::vector<Switch> switches_;
  std::vector<size_t> walk_;
  std::map<std::string, size_t> by_name_;
  std::map<std::string, size_t> leaf_of_node_;
};

}  // namespace dtrain::launcher
