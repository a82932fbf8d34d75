#include "launcher/bind_node.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/status.h"
#include "launcher/hosts/ssh_command.h"
#include "launcher/machine.h"
#include "launcher/rank_plan.h"
#include "launcher/topology/topology.h"

namespace dtrain::launcher {
namespace {

constexpr const char* kLater = "(known when the job has begun)";

std::string PlaceText(const RankSlot& slot, const RankPlan& plan) {
  const auto at = static_cast<size_t>(slot.local_rank);
  const RankBinding binding = at < plan.ranks.size() ? plan.ranks[at] : RankBinding();
  return absl::StrCat(
      slot.cpus.empty() ? "any CPU" : "CPUs " + FormatCpus(slot.cpus),
      slot.memory_node < 0 ? "" : absl::StrCat(", memory of NUMA node ", slot.memory_node),
      binding.gpu < 0 ? "" : absl::StrCat(", GPU ", binding.gpu),
      slot.nic.empty() ? "" : absl::StrCat(", NIC ", slot.nic));
}

// The shape of the job as far as it is known before the nodes meet.
JobShape ShapeBeforeStart(const LaunchOptions& options, const NodeBinding& binding, int ranks) {
  JobShape shape;
  shape.ranks_of_node.assign(static_cast<size_t>(options.nodes), ranks);
  shape.node_rank = options.node_rank;
  shape.begins_job = true;
  shape.restarts_max = options.restarts_max;
  shape.run_id = options.rendezvous_id.empty() ? kLater : options.rendezvous_id;
  shape.run_dir = options.run_dir.empty() ? kLater : options.run_dir;
  shape.store = shape.agent_socket = shape.node_id = shape.master_address = kLater;
  shape.role = options.role;
  shape.token_fd = 3;
  shape.gpu_order = GpuOrder(binding.plan);
  shape.network = SettingsOf(binding.network);
  return shape;
}

}  // namespace

absl::StatusOr<int> RanksHere(const LaunchOptions& options) {
  int ranks = 0;
  if (options.ranks_by_gpus) {
    ranks = std::max(1, options.place->gpus >= 0 ? options.place->gpus : GpuCount());
  } else {
    DT_ASSIGN_OR_RETURN(ranks, RanksOnNode(options.ranks_per_node, CpuCount(), GpuCount()));
  }
  if (options.nodes == 1) {
    DT_RETURN_IF_ERROR(CheckLocalRanks(options, ranks));
  }
  return ranks;
}

NodeBinding BindNode(const LaunchOptions& options, const Environment& environment, int ranks) {
  NodeBinding binding;
  if (!options.bind_cores && options.network_profile.empty()) {
    return binding;
  }
  TopologyOptions reading;
  // If CUDA_VISIBLE_DEVICES is set, its numbers need not be NVML's.
  reading.read_gpus = GpuCount() > 0 && environment.count("CUDA_VISIBLE_DEVICES") == 0;
  const auto topology = ReadTopology(reading);
  if (options.bind_cores) {
    auto plan = topology.ok() ? BindRanks(*topology, ranks) : topology.status();
    if (plan.ok()) {
      binding.plan = *std::move(plan);
    } else {
      DT_LOG(Warning) << "ranks are not bound to cores: " << plan.status().message();
    }
  }
  if (!options.network_profile.empty()) {
    binding.network = ProfileVariables(options.network_profile, topology.value_or(Topology()),
                                       ReadProfileFacts(environment), environment);
  }
  return binding;
}

std::string DescribeNode(const LaunchOptions& options, const Environment& environment,
                         const NodeBinding& binding, int ranks) {
  const JobShape shape = ShapeBeforeStart(options, binding, ranks);
  std::string text = absl::StrFormat("node %d of %d: this host, %d rank%s\n", options.node_rank,
                                     options.nodes, ranks, ranks == 1 ? "" : "s");
  std::string command = QuoteForShell(options.program);
  for (const std::string& argument : options.arguments) {
    absl::StrAppend(&command, " ", QuoteForShell(argument));
  }
  absl::StrAppend(&text, "  command of each rank: ", command, "\n");
  absl::StrAppend(&text, DescribeNetwork(options.network_profile, binding.network));
  for (const RankSlot& slot : PlanRanks(shape, binding.plan)) {
    absl::StrAppend(&text, "  local rank ", slot.local_rank, ": ", PlaceText(slot, binding.plan),
                    "\n");
    Environment variables = RankEnvironment(environment, shape, slot);
    if (options.nodes > 1) {  // The other nodes may have other numbers of ranks.
      for (const char* const name : {"RANK", "WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE"}) {
        variables[name] = kLater;
      }
    }
    variables["MASTER_PORT"] = kLater;
    for (const auto& [name, value] : variables) {
      const auto own = environment.find(name);
      if (own == environment.end() || own->second != value) {
        absl::StrAppend(&text, "    ", name, "=\"", absl::CHexEscape(value), "\"\n");
      }
    }
  }
  return text;
}

std::string DescribeNetwork(const std::string& profile,
                            const std::vector<ProfileVariable>& variables) {
  if (variables.empty()) {
    return "";
  }
  std::string text = absl::StrCat("  network profile ", profile, ", by the NICs of this host:\n");
  for (const std::string& line : DescribeVariables(variables)) {
    absl::StrAppend(&text, "    ", line, "\n");
  }
  return text;
}

}  // namespace dtrain::launcher
