#include "launcher/topology/bind_ranks.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "launcher/topology/distance.h"

namespace dtrain::launcher {
namespace {

// How near a GPU is to the one that the rank before has; less is nearer.
auto NearnessKey(const Topology& topology, size_t before, size_t candidate) {
  const Gpu& from = topology.gpus[before];
  const Gpu& to = topology.gpus[candidate];
  return std::tuple(-NvlinksBetween(from, to),
                    DistanceBetween(from.pci_path, from.numa, to.pci_path, to.numa), to.numa,
                    to.pci);
}

// Positions in topology.gpus, in the order of ranks.
std::vector<size_t> OrderGpus(const Topology& topology) {
  std::vector<size_t> rest(topology.gpus.size());
  std::iota(rest.begin(), rest.end(), 0);
  std::vector<size_t> order;
  while (!rest.empty()) {
    const auto next = std::min_element(rest.begin(), rest.end(), [&](size_t a, size_t b) {
      if (order.empty()) {
        const Gpu& left = topology.gpus[a];
        const Gpu& right = topology.gpus[b];
        return std::tie(left.numa, left.pci) < std::tie(right.numa, right.pci);
      }
      return NearnessKey(topology, order.back(), a) < NearnessKey(topology, order.back(), b);
    });
    order.push_back(*next);
    rest.erase(next);
  }
  return order;
}

// The NUMA node that each rank should run on: that of its GPU, or otherwise spread evenly; -1: any.
std::vector<int> WantedNuma(const Topology& topology, const RankPlan& plan) {
  std::vector<int> wanted;
  std::set<int> numas;
  for (const Core& core : topology.cores) {
    numas.insert(core.numa);
  }
  const size_t ranks = plan.ranks.size();
  const bool spread = ranks % numas.size() == 0;
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (plan.ranks[rank].gpu >= 0) {
      const int numa = topology.gpus[static_cast<size_t>(plan.ranks[rank].gpu)].numa;
      wanted.push_back(numas.count(numa) != 0 ? numa : -1);
    } else {
      wanted.push_back(
          spread ? *std::next(numas.begin(), static_cast<long>(rank * numas.size() / ranks)) : -1);
    }
  }
  return wanted;
}

// Whether every NUMA node has at least one core for each rank that should run on it.
bool Fits(const Topology& topology, const std::vector<int>& wanted) {
  std::map<int, int> cores;
  for (const Core& core : topology.cores) {
    ++cores[core.numa];
  }
  for (const int numa : wanted) {
    if (numa < 0 || --cores[numa] < 0) {
      return false;
    }
  }
  return true;
}

// Gives `ranks` equal neighbouring blocks of `cores`.
void ShareCores(const std::vector<const Core*>& cores, const std::vector<RankBinding*>& ranks,
                bool* shared) {
  const size_t each = std::max<size_t>(1, cores.size() / ranks.size());
  *shared = *shared || ranks.size() > cores.size();
  for (size_t i = 0; i < ranks.size(); ++i) {
    const size_t first = (i * each) % cores.size();
    for (size_t c = first; c < first + each && c < cores.size(); ++c) {
      ranks[i]->cpus.insert(ranks[i]->cpus.end(), cores[c]->cpus.begin(), cores[c]->cpus.end());
      ++ranks[i]->cores;
    }
    ranks[i]->numa = cores[first]->numa;
    const size_t last = std::min(first + each, cores.size()) - 1;
    ranks[i]->memory_node = cores[last]->numa == cores[first]->numa ? cores[first]->numa : -1;
  }
}

void BindCores(const Topology& topology, RankPlan* plan) {
  const std::vector<int> wanted = WantedNuma(topology, *plan);
  // With one NUMA node, or nodes too small for their ranks, all cores form one list.
  const bool by_numa = Fits(topology, wanted);
  std::map<int, std::vector<const Core*>> cores;
  std::map<int, std::vector<RankBinding*>> ranks;
  for (const Core& core : topology.cores) {
    cores[by_numa ? core.numa : 0].push_back(&core);
  }
  for (size_t rank = 0; rank < plan->ranks.size(); ++rank) {
    ranks[by_numa ? wanted[rank] : 0].push_back(&plan->ranks[rank]);
  }
  for (const auto& [numa, members] : ranks) {
    ShareCores(cores[numa], members, &plan->cores_shared);
  }
}

// Removes the CPUs from the plan if a quota gives less time than the cores have.
void ObeyQuota(const Topology& topology, RankPlan* plan) {
  plan->cores_by_quota = topology.cpu_quota < static_cast<double>(topology.cores.size());
  if (!plan->cores_by_quota) {
    return;
  }
  const int usable = CpusWithin(topology.cpu_quota, static_cast<int>(topology.cores.size()));
  for (RankBinding& rank : plan->ranks) {
    rank.cpus.clear();
    rank.memory_node = -1;
    rank.cores = std::max(1, usable / static_cast<int>(plan->ranks.size()));
  }
}

// The fastest port that is active, or may be; null: none.
const NicPort* BestPort(const Nic& nic) {
  const NicPort* best = nullptr;
  for (const NicPort& port : nic.ports) {
    if ((port.state == "ACTIVE" || port.state.empty()) &&
        (best == nullptr || port.rate_gbps > best->rate_gbps)) {
      best = &port;
    }
  }
  return best;
}

// Ethernet ports whose GIDs can be read need one of RoCE v2.
bool CanCarry(const NicPort& port) {
  return port.link_layer != "Ethernet" || port.gids.empty() ||
         std::any_of(port.gids.begin(), port.gids.end(),
                     [](const Gid& gid) { return gid.type == "RoCE v2"; });
}

void BindNic(const Topology& topology, const std::vector<const Nic*>& nics, RankBinding* rank,
             std::map<std::string, int>* uses) {
  const Nic* best = nullptr;
  std::tuple<PciDistance, int> best_key;
  for (const Nic* const candidate : nics) {
    const Nic& nic = *candidate;
    const Gpu* const gpu = rank->gpu < 0 ? nullptr : &topology.gpus[static_cast<size_t>(rank->gpu)];
    const PciDistance distance =
        gpu == nullptr ? DistanceBetween({}, rank->numa, {}, nic.numa)
                       : DistanceBetween(gpu->pci_path, gpu->numa, nic.pci_path, nic.numa);
    const std::tuple<PciDistance, int> key{distance, (*uses)[NicLabel(nic)]};
    if (best == nullptr || key < best_key) {
      best = &nic;
      best_key = key;
    }
  }
  if (best != nullptr) {
    rank->nic = best->name;
    rank->nic_pci = best->pci;
    ++(*uses)[NicLabel(*best)];
  }
}

}  // namespace

std::vector<const Nic*> UsableNics(const Topology& topology) {
  std::vector<std::pair<const Nic*, const NicPort*>> nics;
  double fastest = 0;
  for (const Nic& nic : topology.nics) {
    const NicPort* const port = BestPort(nic);
    if (port != nullptr && CanCarry(*port)) {
      nics.emplace_back(&nic, port);
      fastest = std::max(fastest, port->rate_gbps);
    }
  }
  // A bond of two slow ports with half of a fast port's rate is left out too.
  const auto slow = [fastest](const auto& nic) {
    return nic.second->rate_gbps < fastest && nic.second->rate_gbps * 2 <= fastest;
  };
  nics.erase(std::remove_if(nics.begin(), nics.end(), slow), nics.end());
  std::map<std::string, double> rates;  // Sum of rates by kind of link.
  for (const auto& [nic, port] : nics) {
    rates[port->link_layer] += port->rate_gbps;
  }
  const auto most = std::max_element(
      rates.begin(), rates.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  std::vector<const Nic*> usable;
  for (const auto& [nic, port] : nics) {
    if (port->link_layer == most->first) {
      usable.push_back(nic);
    }
  }
  return usable;
}

absl::StatusOr<RankPlan> BindRanks(const Topology& topology, int ranks) {
  if (ranks < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("ranks on this node: ", ranks, "; allowed: 1 or more"));
  }
  if (topology.cores.empty()) {
    return absl::InvalidArgumentError("the topology has no core");
  }
  RankPlan plan;
  const std::vector<size_t> order = OrderGpus(topology);
  plan.gpus_shared = !order.empty() && static_cast<size_t>(ranks) > order.size();
  plan.ranks.resize(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    RankBinding& binding = plan.ranks[static_cast<size_t>(rank)];
    binding.local_rank = rank;
    if (!order.empty()) {
      // More ranks than GPUs: neighbours share one.
      const size_t place =
          static_cast<size_t>(ranks) <= order.size()
              ? static_cast<size_t>(rank)
              : static_cast<size_t>(rank) * order.size() / static_cast<size_t>(ranks);
      binding.gpu = static_cast<int>(order[place]);
    }
  }
  BindCores(topology, &plan);
  ObeyQuota(topology, &plan);
  const std::vector<const Nic*> nics = UsableNics(topology);
  std::map<std::string, int> uses;
  for (RankBinding& rank : plan.ranks) {
    rank.memory_node = topology.numa_nodes.size() > 1 ? rank.memory_node : -1;
    BindNic(topology, nics, &rank, &uses);
  }
  // Replaces positions, which `gpu` held up to here, by NVML's indices.
  for (RankBinding& rank : plan.ranks) {
    rank.gpu = rank.gpu < 0 ? -1 : topology.gpus[static_cast<size_t>(rank.gpu)].index;
  }
  return plan;
}

}  // namespace dtrain::launcher
