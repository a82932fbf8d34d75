#include "launcher/topology/commands.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "base/console/command_line.h"
#include "base/status.h"
#include "launcher/topology/bind_ranks.h"
#include "launcher/topology/doctor.h"
#include "launcher/topology/format.h"
#include "launcher/topology/topology.h"

namespace dtrain::launcher {
int TopoMain(const std::vector<std::string>& arguments) {
  CLI::App app("Shows the hardware of this node: cores, NUMA nodes, GPUs with NVLink, RDMA NICs.",
               "dtrain topo");
  bool json = false;
  int ranks = 0;
  app.add_flag("--json", json, "Print one JSON object instead of tables. Default: off");
  app.add_option("--nproc-per-node", ranks,
                 "Also show the cores, GPU and NIC of each of N ranks. Default: no ranks")
      ->check(CLI::Range(1, 4096));
  app.footer(
      "Examples:\n"
      "  dtrain topo\n"
      "  dtrain topo --nproc-per-node 8\n"
      "  dtrain topo --json | jq .gpus");
  if (const auto code = ParseCommandLine(app, arguments)) {
    return *code;
  }
  const auto topology = ReadTopology();
  if (!topology.ok()) {
    return EndOf("dtrain topo", topology.status());
  }
  RankPlan plan;
  if (ranks > 0) {
    auto bound = BindRanks(*topology, ranks);
    if (!bound.ok()) {
      return EndOf("dtrain topo", bound.status());
    }
    plan = *std::move(bound);
  }
  if (json) {
    Json object = TopologyJson(*topology);
    if (ranks > 0) {
      object["rank_plan"] = RankPlanJson(plan);
    }
    std::printf("%s\n", DumpJson(object, 2).c_str());
    return kExitOk;
  }
  std::fputs(FormatTopology(*topology).c_str(), stdout);
  if (ranks > 0) {
    std::printf("\n%s", FormatRankPlan(*topology, plan).c_str());
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
