#include "launcher/topology/commands.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/console/command_line.h"
#include "base/dl/verbs.h"
#include "base/file.h"
#include "base/status.h"
#include "launcher/topology/bind_ranks.h"
#include "launcher/topology/doctor.h"
#include "launcher/topology/format.h"
#include "launcher/topology/nccl_topology.h"
#include "launcher/topology/network_profile.h"
#include "launcher/topology/switch_tree.h"
#include "launcher/topology/topology.h"

namespace dtrain::launcher {
namespace {

struct TopoFlags {
  bool json = false;
  int ranks = 0;
  std::string hwloc_xml;
  std::string nccl_xml;
  std::string sysfs;
  std::string write_nccl_xml;
  std::string topology_conf;
  std::string host;
  std::string profile;
  bool measure = false;
  std::string write_topology_conf;
};

// Everything that the command shows.
struct TopoReport {
  Topology topology;
  std::optional<NcclElement> nccl;  // The file that was read, as it is.
  std::optional<RankPlan> plan;
  std::optional<SwitchTree> switches;
  std::string switches_from;  // The file, or the variable.
  std::string slurm_node;     // This node's name in SLURM_TOPOLOGY_ADDR; "": that is not used.
  std::vector<ProfileVariable> variables;
};

void AddTopoFlags(CLI::App& app, TopoFlags& flags) {
  const auto add = [&app](const char* name, const char* placeholder, std::string& value,
                          const char* text) {
    return app.add_option(name, value, text)->option_text(placeholder);
  };
  app.add_flag("--json", flags.json, "Print one JSON object instead of tables. Default: off");
  app.add_option("--nproc-per-node", flags.ranks,
                 "Also show the cores, GPU and NIC of each of N ranks. Default: no ranks")
      ->check(CLI::Range(1, 4096));
  CLI::Option* const hwloc =
      add("--hwloc-xml", "FILE", flags.hwloc_xml,
          "Show the machine of a file that lstopo has written. Default: this "
          "machine");
  CLI::Option* const nccl = add("--nccl-xml", "FILE", flags.nccl_xml,
                                "Show the machine of a topology file of NCCL. Default: this "
                                "machine");
  add("--sysfs", "DIR", flags.sysfs,
      "Show the machine whose /sys was copied to this folder. Default: this machine")
      ->excludes(hwloc)
      ->excludes(nccl);
  hwloc->excludes(nccl);
  add("--write-nccl-xml", "FILE", flags.write_nccl_xml,
      "Write the topology as a file for NCCL_TOPO_FILE; - writes it to stdout and shows nothing "
      "else. Default: not written");
  add("--topology-conf", "FILE", flags.topology_conf,
      "Also show the switches of the cluster. FILE has the form of Slurm's topology.conf, or an "
      "address of each node a line, as in SLURM_TOPOLOGY_ADDR. Default: this node's "
      "SLURM_TOPOLOGY_ADDR");
  add("--host", "NAME", flags.host,
      "The name of this node in the file of --topology-conf. Default: its host name");
  app.add_flag(
         "--measure", flags.measure,
         "Find the network's switches by the latencies between the hosts of a job. Start it as "
         "the ranks of a job, one on each host. Default: off")
      ->excludes("--topology-conf");
  add("--write-topology-conf", "FILE", flags.write_topology_conf,
      "Write the switches as a file for --topology-conf. Default: not written");
  add("--network-profile", "NAME", flags.profile,
      "Also show the variables for NCCL that this kind of network needs: oci, gcp, aws-efa, azure "
      "or roce-generic. Default: none");
  app.footer(
      "A value that is not known reads \"unknown\".\n\n"
      "Examples:\n"
      "  dtrain topo\n"
      "  dtrain topo --nproc-per-node 8\n"
      "  dtrain topo --json | jq .gpus\n"
      "  dtrain topo --write-nccl-xml node.xml\n"
      "  dtrain topo --nccl-xml node.xml --nproc-per-node 8\n"
      "  dtrain topo --topology-conf /etc/slurm/topology.conf\n"
      "  dtrain launch --hostfile hosts --nproc-per-node 1 -- dtrain topo --measure");
}

// Reads the machine, or the file or folder that stands for one.
absl::Status ReadMachine(const TopoFlags& flags, TopoReport* report) {
  if (!flags.hwloc_xml.empty()) {
    DT_ASSIGN_OR_RETURN(report->topology, ReadHwlocFile(flags.hwloc_xml));
  } else if (!flags.nccl_xml.empty()) {
    DT_ASSIGN_OR_RETURN(report->nccl, ReadNcclFile(flags.nccl_xml));
    DT_ASSIGN_OR_RETURN(report->topology, FromNccl(*report->nccl, flags.nccl_xml));
  } else if (!flags.sysfs.empty()) {
    DT_ASSIGN_OR_RETURN(report->topology, ReadSysfsRoot(flags.sysfs));
  } else {
    TopologyOptions options;
    options.read_pci = true;
    const auto verbs = Verbs::Open();
    options.verbs = verbs.ok() ? *verbs : nullptr;
    DT_ASSIGN_OR_RETURN(report->topology, ReadTopology(options));
  }
  return absl::OkStatus();
}

constexpr char kMeasured[] = "measured";

// Finds the switches in latencies. Where they show none, says so and goes on without.
void FindSwitches(const Latencies& latencies, TopoReport* report) {
  MeasuredSwitches measured = SwitchesOf(latencies);
  report->switches_from = kMeasured;
  if (!measured.why_unknown.empty()) {
    report->topology.notes.push_back(absl::StrCat("switches unknown: ", measured.why_unknown));
    return;
  }
  report->topology.notes.push_back(
      absl::StrFormat("hosts at one switch are %.1f us from each other, others %.1f us",
                      measured.near_us, measured.far_us));
  report->switches = std::move(measured.tree);
}

// Reads the switches from the file, or else, for this node, from Slurm's variables.
absl::Status ReadSwitches(const TopoFlags& flags, const Environment& environment,
                          TopoReport* report) {
  constexpr size_t kSwitchFileBytesMax = 16U << 20;
  absl::StatusOr<std::string> text = absl::NotFoundError("");
  if (!flags.topology_conf.empty()) {
    text = ReadFile(flags.topology_conf, kSwitchFileBytesMax);
  }
  if (text.ok()) {
    report->switches_from = flags.topology_conf;
    DT_ASSIGN_OR_RETURN(report->switches, SwitchTree::Parse(*text, flags.topology_conf));
    return absl::OkStatus();
  }
  const bool is_this_machine =
      flags.hwloc_xml.empty() && flags.nccl_xml.empty() && flags.sysfs.empty();
  DT_ASSIGN_OR_RETURN(const auto address,
                      is_this_machine ? AddressIn(environment) : std::optional<NodeAddress>());
  if (!address.has_value()) {
    return flags.topology_conf.empty() ? absl::OkStatus() : text.status();
  }
  if (!flags.topology_conf.empty()) {
    std::fprintf(stderr, "dtrain topo: %s; the switches are those of %s\n",
                 std::string(text.status().message()).c_str(), kSlurmAddress);
  }
  report->switches_from = kSlurmAddress;
  report->slurm_node = address->node;
  DT_ASSIGN_OR_RETURN(report->switches, SwitchTree::OfAddresses({*address}, kSlurmAddress));
  return absl::OkStatus();
}

absl::StatusOr<TopoReport> MakeReport(const TopoFlags& flags, const Environment& environment,
                                      const std::optional<Latencies>& latencies) {
  TopoReport report;
  if (!flags.profile.empty()) {
    DT_RETURN_IF_ERROR(CheckNetworkProfile(flags.profile));
  }
  if (!latencies.has_value()) {
    DT_RETURN_IF_ERROR(ReadSwitches(flags, environment, &report));
  }
  DT_RETURN_IF_ERROR(ReadMachine(flags, &report));
  if (latencies.has_value()) {
    FindSwitches(*latencies, &report);
  }
  if (flags.ranks > 0) {
    DT_ASSIGN_OR_RETURN(report.plan, BindRanks(report.topology, flags.ranks));
  }
  if (!flags.profile.empty()) {
    const bool is_file = !report.topology.file.empty();
    report.variables = ProfileVariables(flags.profile, report.topology,
                                        is_file ? ProfileFacts() : ReadProfileFacts({}), {});
  }
  return report;
}

absl::Status WriteSwitches(const TopoFlags& flags, const TopoReport& report) {
  if (flags.write_topology_conf.empty()) {
    return absl::OkStatus();
  }
  if (!report.switches.has_value()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no switches are known, so ", flags.write_topology_conf, " is not written",
        report.topology.notes.empty() ? "" : absl::StrCat("; ", report.topology.notes.back())));
  }
  return WriteFileAtomic(flags.write_topology_conf, FormatTopologyConf(*report.switches));
}

// The host that the file of switches is to name.
std::string HostOf(const TopoFlags& flags, const TopoReport& report) {
  return !flags.host.empty()          ? flags.host
         : !report.slurm_node.empty() ? report.slurm_node
                                      : report.topology.host;
}

void PrintJson(const TopoFlags& flags, const TopoReport& report) {
  Json object = TopologyJson(report.topology);
  if (report.plan.has_value()) {
    object["rank_plan"] = RankPlanJson(*report.plan);
  }
  if (report.switches.has_value()) {
    object["cluster"] = SwitchesJson(*report.switches, HostOf(flags, report));
    object["cluster"]["source"] = report.switches_from;
  }
  if (!flags.profile.empty()) {
    object["network_profile"] = {{"name", flags.profile},
                                 {"variables", VariablesJson(report.variables)}};
  }
  std::printf("%s\n", DumpJson(object, 2).c_str());
}

void PrintText(const TopoFlags& flags, const TopoReport& report) {
  std::fputs(FormatTopology(report.topology).c_str(), stdout);
  if (report.plan.has_value()) {
    std::printf("\n%s", FormatRankPlan(report.topology, *report.plan).c_str());
  }
  if (report.switches.has_value()) {
    std::printf("\n  switches (%s):\n%s", report.switches_from.c_str(),
                FormatSwitches(*report.switches, HostOf(flags, report)).c_str());
  }
  if (!flags.profile.empty()) {
    std::printf("\n  network profile %s:\n", flags.profile.c_str());
    for (const std::string& line : DescribeVariables(report.variables)) {
      std::printf("  %s\n", line.c_str());
    }
  }
}

}  // namespace

int TopoMain(const std::vector<std::string>& arguments, const Environment& environment,
             const MeasureFunction& measure) {
  CLI::App app(
      "Shows the hardware of this node or of a file: cores, caches, NUMA nodes, the PCI tree, GPUs "
      "with NVLink and their state, RDMA NICs, and how near they are to one another.",
      "dtrain topo");
  TopoFlags flags;
  AddTopoFlags(app, flags);
  if (const auto code = ParseCommandLine(app, arguments)) {
    return *code;
  }
  std::optional<Latencies> latencies;
  if (flags.measure && measure != nullptr) {
    absl::StatusOr<std::optional<Latencies>> measured = measure(environment);
    if (!measured.ok()) {
      return EndOf("dtrain topo", measured.status());
    }
    if (!measured->has_value()) {
      return kExitOk;  // Rank 0 prints.
    }
    latencies = *std::move(measured);
  }
  const absl::StatusOr<TopoReport> report = MakeReport(flags, environment, latencies);
  if (!report.ok()) {
    return EndOf("dtrain topo", report.status());
  }
  if (const absl::Status written = WriteSwitches(flags, *report); !written.ok()) {
    return EndOf("dtrain topo", written);
  }
  if (!flags.write_nccl_xml.empty()) {
    const std::string text =
        FormatNcclXml(report->nccl.has_value() ? *report->nccl : ToNccl(report->topology));
    if (flags.write_nccl_xml == "-") {
      std::fputs(text.c_str(), stdout);
      return kExitOk;
    }
    if (const absl::Status written = WriteFileAtomic(flags.write_nccl_xml, text); !written.ok()) {
      return EndOf("dtrain topo", written);
    }
  }
  if (flags.json) {
    PrintJson(flags, *report);
  } else {
    PrintText(flags, *report);
  }
  return kExitOk;
}

int DoctorMain(const std::vector<std::string>& arguments, const Environment& environment) {
  CLI::App app(
      "Checks whether ranks can run on this node. If they cannot, says what to do and ends with "
      "exit code 64.",
      "dtrain doctor");
  bool json = false;
  app.add_flag("--json", json, "Print one JSON object instead of text. Default: off");
  app.footer(
      "Examples:\n"
      "  dtrain doctor\n"
      "  srun -N4 --ntasks-per-node=1 dtrain doctor --json");
  if (const auto code = ParseCommandLine(app, arguments)) {
    return *code;
  }
  const auto topology = ReadTopology();
  if (!topology.ok()) {
    return EndOf("dtrain doctor", topology.status());
  }
  DoctorOptions options;
  options.plugin_folder = PluginDirectory(environment);
  options.torch = OwnTorchSearch(environment);
  const std::vector<Finding> findings = Diagnose(*topology, ReadDoctorFacts(options));
  std::fputs(json ? absl::StrCat(DumpJson(FindingsJson(findings), 2), "\n").c_str()
                  : FormatFindings(findings).c_str(),
             stdout);
  const bool problem = std::any_of(findings.begin(), findings.end(), [](const Finding& finding) {
    return finding.verdict == Verdict::kProblem;
  });
  return problem ? kExitUsage : kExitOk;
}

}  // namespace dtrain::launcher
