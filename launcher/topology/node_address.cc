#include "launcher/topology/node_address.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace dtrain::launcher {
namespace {

bool IsName(absl::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           absl::StrContains("-_.[],", absl::string_view(&c, 1));
  });
}

absl::Status BadAddress(absl::string_view address, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrFormat("the topology address \"%s\" %s; allowed: names from the root's switch down "
                      "to the node, such as spine.leaf1.n5",
                      address, what));
}

}  // namespace

absl::StatusOr<NodeAddress> ParseNodeAddress(absl::string_view address, absl::string_view pattern) {
  std::vector<std::string> names = absl::StrSplit(address, '.');
  size_t switches = names.size() - 1;
  if (!pattern.empty()) {
    const std::vector<std::string> kinds = absl::StrSplit(pattern, '.');
    switches = kinds.size() - 1;
    const bool is_known = kinds.back() == "node" &&
                          std::all_of(kinds.begin(), kinds.end() - 1, [](const std::string& kind) {
                            return kind == "switch" || kind == "block";
                          });
    if (!is_known || names.size() < kinds.size()) {
      return BadAddress(address, absl::StrFormat("does not have the pattern \"%s\"", pattern));
    }
  }
  NodeAddress result;
  result.switches.assign(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(switches));
  // A node's name may have dots.
  result.node =
      absl::StrJoin(names.begin() + static_cast<std::ptrdiff_t>(switches), names.end(), ".");
  if (!std::all_of(names.begin(), names.end(), IsName)) {
    return BadAddress(address, "has a part that is no name");
  }
  return result;
}

absl::StatusOr<std::optional<NodeAddress>> AddressIn(const Environment& environment) {
  const auto address = environment.find("SLURM_TOPOLOGY_ADDR");
  if (address == environment.end() || address->second.empty()) {
    return std::optional<NodeAddress>();
  }
  const auto pattern = environment.find("SLURM_TOPOLOGY_ADDR_PATTERN");
  DT_ASSIGN_OR_RETURN(
      NodeAddress parsed,
      ParseNodeAddress(address->second, pattern == environment.end() ? "" : pattern->second));
  return parsed.switches.empty() ? std::optional<NodeAddress>()
                                 : std::optional<NodeAddress>(std::move(parsed));
}

}  // namespace dtrain::launcher
