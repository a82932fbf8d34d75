// The switches above one node, as Slurm tells each task of a step where its configuration names
// them: SLURM_TOPOLOGY_ADDR has the names from the root down to the node, "spine.leaf1.n5", and
// SLURM_TOPOLOGY_ADDR_PATTERN says what they are, "switch.switch.node". For where topology.conf
// cannot be read. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/job_env.h"

namespace dtrain::launcher {

inline constexpr char kSlurmAddress[] = "SLURM_TOPOLOGY_ADDR";

struct NodeAddress {
  std::vector<std::string> switches;  // From the root down; none: Slurm knows no switches.
  std::string node;
};

// `pattern` may be empty: then the last name is the node's. A part with several names, such as
// "spine[1-2]", is one switch here. InvalidArgument: an empty part, a character that no name has,
// or another pattern than switches or blocks and then the node.
absl::StatusOr<NodeAddress> ParseNodeAddress(absl::string_view address, absl::string_view pattern);

// The address in the variables of this process; nothing outside of Slurm's steps, and where Slurm
// knows no switches.
absl::StatusOr<std::optional<NodeAddress>> AddressIn(const Environment& environment);

}  // namespace dtrain::launcher
