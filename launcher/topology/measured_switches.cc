#include "launcher/topology/measured_switches.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace dtrain::launcher {
namespace {

constexpr double kFarLeast = 1.2;  // The least ratio of the means.
constexpr size_t kHostsLeast = 3;  // Two hosts have one latency.

using Group = std::vector<size_t>;  // Places of hosts, in order.

// The smaller latency of both directions counts, because noise only adds.
double Between(const Latencies& latencies, size_t a, size_t b) {
  const double there = latencies.us[a][b];
  const double back = latencies.us[b][a];
  return there < 0 || back < 0 ? std::max(there, back) : std::min(there, back);
}

struct Split {
  double near_us = 0;
  double far_us = 0;
  std::vector<Group> groups;
};

// The split of sorted values into two kinds that differ most, as Otsu's threshold does: the number
// of near ones, with the means of both.
struct TwoKinds {
  size_t near = 0;
  double near_us = 0;
  double far_us = 0;
};
TwoKinds SplitInTwo(const std::vector<double>& sorted) {
  double whole = 0;
  for (const double value : sorted) {
    whole += value;
  }
  TwoKinds best;
  double most = -1;
  double sum = 0;
  const auto count = static_cast<double>(sorted.size());
  for (size_t near = 1; near < sorted.size(); ++near) {
    sum += sorted[near - 1];
    const auto below = static_cast<double>(near);
    const double difference = (whole - sum) / (count - below) - sum / below;
    const double variance = below * (count - below) * difference * difference;
    if (variance > most) {
      most = variance;
      best = {near, sum / below, (whole - sum) / (count - below)};
    }
  }
  return best;
}

// The groups of hosts that are near to each other; nothing where they are not clear.
std::optional<Split> SplitGroup(const Latencies& latencies, const Group& hosts) {
  std::vector<double> sorted;
  for (size_t a = 0; a < hosts.size(); ++a) {
    for (size_t b = a + 1; b < hosts.size(); ++b) {
      sorted.push_back(Between(latencies, hosts[a], hosts[b]));
    }
  }
  if (hosts.size() < kHostsLeast) {
    return std::nullopt;
  }
  std::sort(sorted.begin(), sorted.end());
  const TwoKinds kinds = SplitInTwo(sorted);
  if (kinds.far_us < kFarLeast * kinds.near_us) {
    return std::nullopt;
  }
  const double near_most = sorted[kinds.near - 1];
  Split split{kinds.near_us, kinds.far_us, {}};
  for (const size_t host : hosts) {
    Group* home = nullptr;
    for (Group& group : split.groups) {
      const auto is_near = [&](size_t other) {
        return Between(latencies, host, other) <= near_most;
      };
      const auto count = std::count_if(group.begin(), group.end(), is_near);
      if (count != 0 && (home != nullptr || static_cast<size_t>(count) != group.size())) {
        return std::nullopt;  // It is near to some of a switch only, or to two switches.
      }
      home = count != 0 ? &group : home;
    }
    if (home == nullptr) {
      split.groups.emplace_back();
      home = &split.groups.back();
    }
    home->push_back(host);
  }
  return split;
}

// Appends the addresses of the hosts below the switches `above`.
void AddAddresses(const Latencies& latencies, const Group& hosts, const std::optional<Split>& split,
                  const std::vector<std::string>& above, std::vector<NodeAddress>& addresses) {
  for (size_t i = 0; split.has_value() && i < split->groups.size(); ++i) {
    std::vector<std::string> below = above;
    below.push_back(absl::StrCat(above.back(), "-", i + 1));
    AddAddresses(latencies, split->groups[i], SplitGroup(latencies, split->groups[i]), below,
                 addresses);
  }
  for (const size_t host : split.has_value() ? Group() : hosts) {
    addresses.push_back({above, latencies.hosts[host]});
  }
}

// The first pair of hosts between which no latency is known; "" if all are.
std::string UnknownPair(const Latencies& latencies) {
  for (size_t a = 0; a < latencies.hosts.size(); ++a) {
    for (size_t b = a + 1; b < latencies.hosts.size(); ++b) {
      if (Between(latencies, a, b) < 0) {
        return absl::StrCat(latencies.hosts[a], " and ", latencies.hosts[b]);
      }
    }
  }
  return "";
}

}  // namespace

MeasuredSwitches SwitchesOf(const Latencies& latencies) {
  MeasuredSwitches result;
  if (const std::string pair = UnknownPair(latencies); !pair.empty()) {
    result.why_unknown = absl::StrCat("the latency between ", pair, " is not known");
    return result;
  }
  Group all(latencies.hosts.size());
  for (size_t i = 0; i < all.size(); ++i) {
    all[i] = i;
  }
  const std::optional<Split> split = SplitGroup(latencies, all);
  if (!split.has_value()) {
    result.why_unknown = absl::StrFormat(
        "the latencies of %d hosts show no groups that are clearly nearer to each other than to "
        "the rest",
        all.size());
    return result;
  }
  result.near_us = split->near_us;
  result.far_us = split->far_us;
  std::vector<NodeAddress> addresses;
  AddAddresses(latencies, all, split, {"measured"}, addresses);
  absl::StatusOr<SwitchTree> tree = SwitchTree::OfAddresses(addresses, "the measured switches");
  if (tree.ok()) {
    result.tree = *std::move(tree);
  } else {
    result.why_unknown = std::string(tree.status().message());
  }
  return result;
}

}  // namespace dtrain::launcher
