// The switches between hosts as their latencies show them, for clusters of which nothing else is
// known. Pure.
#pragma once

#include <string>
#include <vector>

#include "launcher/topology/switch_tree.h"

namespace dtrain::launcher {

struct Latencies {
  std::vector<std::string> hosts;
  // [hosts, hosts], microseconds one way. Below 0: not known. The diagonal is not read.
  std::vector<std::vector<double>> us;
};

struct MeasuredSwitches {
  SwitchTree tree;          // Valid if `why_unknown` is empty.
  std::string why_unknown;  // Why the latencies show no switches: a sentence.
  double near_us = 0;       // The means of pairs at one switch, and of the others.
  double far_us = 0;
};

// Hosts are at one switch if all of them are near to each other and far from all others: the pairs
// fall into two kinds, whose means differ by at least a fifth, and nearness is transitive without
// an exception. Otherwise nothing is said. Hosts of a switch are looked at again, for the switches
// below it. Switches are named "measured", "measured-1", "measured-1-2", in the order of hosts.
MeasuredSwitches SwitchesOf(const Latencies& latencies);

}  // namespace dtrain::launcher
