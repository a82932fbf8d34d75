#include "launcher/hosts/host_plan.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/status.h"
#include "base/system/own_program.h"
#include "comm/net/socket.h"
#include "launcher/hosts/exports.h"
#include "launcher/hosts/hostfile.h"
#include "launcher/hosts/ssh_command.h"
#include "launcher/machine.h"
#include "launcher/program.h"
#include "launcher/topology/switch_tree.h"

namespace dtrain::launcher {
namespace {

constexpr size_t kHostfileBytesMax = 16U << 20;

absl::StatusOr<std::vector<Host>> ReadHosts(const HostOptions& options) {
  const absl::StatusOr<std::string> read = ReadFile(options.hostfile, kHostfileBytesMax);
  DT_RETURN_IF_ERROR(Annotate(read.status(), "--hostfile"));
  DT_ASSIGN_OR_RETURN(const std::vector<Host> hosts, ParseHostfile(*read, options.hostfile));
  return ChooseHosts(hosts,
                     {options.include, options.exclude, options.hosts_max, options.slots_max});
}

// The switches of the cluster; none without a file of them.
absl::StatusOr<std::optional<SwitchTree>> ReadSwitches(const std::string& path) {
  if (path.empty()) {
    return std::optional<SwitchTree>();
  }
  DT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kHostfileBytesMax));
  DT_ASSIGN_OR_RETURN(SwitchTree tree, SwitchTree::Parse(text, path));
  return std::optional<SwitchTree>(std::move(tree));
}

// The hosts with those at one switch beside each other.
std::vector<Host> InSwitchOrder(const std::vector<Host>& hosts, const SwitchTree& switches) {
  std::vector<std::string> names;
  for (const Host& host : hosts) {
    names.push_back(host.name);
  }
  std::vector<Host> ordered;
  for (const size_t at : switches.Order(names)) {
    ordered.push_back(hosts[at]);
  }
  return ordered;
}

int MostSlots(const std::vector<Host>& hosts) {
  size_t most = 0;
  for (const Host& host : hosts) {
    most = std::max(most, host.slots.size());
  }
  return static_cast<int>(most);
}

std::vector<std::string> OwnAddresses() {
  std::vector<std::string> addresses;
  if (const auto found = comm::LocalAddresses(); found.ok()) {
    for (const comm::LocalAddress& address : *found) {
      addresses.push_back(address.address);
    }
  }
  return addresses;
}

// A bare name becomes the path that it has here, because ssh gives a short PATH. If it has none
// here, the hosts search for it.
std::string ProgramForHosts(const std::string& name, const Environment& environment) {
  const auto path = environment.find("PATH");
  if (absl::StrContains(name, '/') || path == environment.end()) {
    return name;
  }
  return FindProgram(name, path->second).value_or(name);
}

// Whether the slots are the first ones.
bool AreFirst(const std::vector<int>& slots) {
  return slots.back() == static_cast<int>(slots.size()) - 1;
}

// Shares the hosts that are reached by ssh out among each other.
void PlaceInTree(int fanout, std::vector<HostPlan>& plans) {
  std::vector<HostPlan*> remote;
  for (HostPlan& plan : plans) {
    if (!plan.is_local) {
      remote.push_back(&plan);
    }
  }
  const std::vector<TreePlace> places = SplitIntoTree(static_cast<int>(remote.size()), fanout);
  for (size_t i = 0; i < remote.size(); ++i) {
    TreePlace& place = remote[i]->place;
    place = places[i];
    if (place.parent >= 0) {
      place.parent = remote[static_cast<size_t>(place.parent)]->job.node_rank;
    }
  }
}

std::string Quoted(const std::string& text) {
  return absl::StrCat("\"", absl::CHexEscape(text), "\"");
}

}  // namespace

absl::StatusOr<std::vector<HostPlan>> PlanHosts(const LaunchOptions& options,
                                                const Environment& environment) {
  const HostOptions& given = options.hosts;
  DT_ASSIGN_OR_RETURN(std::vector<Host> hosts, ReadHosts(given));
  DT_ASSIGN_OR_RETURN(const auto switches, ReadSwitches(given.topology_conf));
  hosts = switches.has_value() ? InSwitchOrder(hosts, *switches) : hosts;
  DT_RETURN_IF_ERROR(CheckLocalRanks(options, MostSlots(hosts)));
  SshOptions ssh;
  ssh.port = given.ssh_port;
  ssh.dtrain = given.dtrain.empty() ? OwnProgram() : given.dtrain;
  DT_ASSIGN_OR_RETURN(ssh.more_words, SplitWords(given.launcher_args));
  DT_ASSIGN_OR_RETURN(const std::vector<std::string> files, ReadEnvironmentFiles(environment));
  JobMessage job;
  DT_ASSIGN_OR_RETURN(job.environment, ExportedEnvironment(environment, files, given.exports));
  job.flags = given.flags;
  job.program = ProgramForHosts(options.program, environment);
  job.arguments = options.arguments;
  job.directory = WorkingDirectory();
  const int count = static_cast<int>(hosts.size());
  const bool is_elastic = options.nodes_min < options.nodes;
  if (is_elastic && count < options.nodes_min) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--nnodes %d:%d needs at least %d hosts, but the hostfile has %d",
                        options.nodes_min, options.nodes, options.nodes_min, count));
  }
  job.nodes = is_elastic ? options.nodes : count;
  job.nodes_min = is_elastic ? options.nodes_min : count;
  const std::string own_name = HostName();
  const std::vector<std::string> own_addresses = OwnAddresses();
  std::vector<HostPlan> plans;
  for (const Host& host : hosts) {
    HostPlan& plan = plans.emplace_back();
    plan.host = host.name;
    plan.switches = switches.has_value() ? switches->AddressOf(host.name) : "";
    plan.is_local = IsThisHost(host.name, own_name, own_addresses);
    plan.command = plan.is_local ? LocalCommand(OwnProgram()) : SshCommand(host.name, ssh);
    plan.job = job;
    plan.job.host = host.name;
    plan.job.node_rank = static_cast<int>(plans.size()) - 1;
    plan.job.ranks = static_cast<int>(host.slots.size());
    if (!AreFirst(host.slots)) {  // As with DeepSpeed, a slot is a GPU of the host.
      plan.job.environment.emplace("CUDA_VISIBLE_DEVICES", absl::StrJoin(host.slots, ","));
    }
  }
  PlaceInTree(given.fanout, plans);
  return plans;
}

std::string DescribePlans(const std::vector<HostPlan>& plans) {
  std::string text;
  for (const HostPlan& plan : plans) {
    const JobMessage& job = plan.job;
    absl::StrAppendFormat(&text, "node %d of %d: host %s, %d rank%s%s\n", job.node_rank, job.nodes,
                          plan.host, job.ranks, job.ranks == 1 ? "" : "s",
                          job.node_rank < job.nodes ? "" : ", a spare if so many others are there");
    if (!plan.switches.empty()) {
      absl::StrAppend(&text, "  switches: ", plan.switches, "\n");
    }
    const auto quoted = [](std::string* out, const std::string& word) {
      absl::StrAppend(out, QuoteForShell(word));
    };
    const auto escaped = [](std::string* out, const std::string& word) {
      absl::StrAppend(out, Quoted(word));
    };
    if (plan.place.parent >= 0) {
      absl::StrAppendFormat(&text, "  started by host %s, %d connections of ssh from here\n",
                            plans[static_cast<size_t>(plan.place.parent)].host, plan.place.hops);
    }
    absl::StrAppend(&text, "  command: ", absl::StrJoin(plan.command, " ", quoted), "\n");
    absl::StrAppend(&text, "  sent on its stdin:\n    folder: ", Quoted(job.directory), "\n");
    absl::StrAppend(&text, "    program: ", Quoted(job.program), "\n");
    absl::StrAppend(&text, "    arguments: ", absl::StrJoin(job.arguments, " ", escaped), "\n");
    absl::StrAppend(&text, "    flags: ", absl::StrJoin(job.flags, " ", escaped), "\n");
    for (const auto& [name, value] : job.environment) {
      absl::StrAppend(&text, "    variable: ", name, "=", Quoted(Shown(name, value)), "\n");
    }
    absl::StrAppend(&text, "    token: (hidden)\n");
  }
  return text;
}

}  // namespace dtrain::launcher
