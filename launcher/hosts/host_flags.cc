#include "launcher/hosts/host_flags.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "launcher/nodes/meeting_point.h"

namespace dtrain::launcher {
namespace {

// Flags that say which hosts there are, or what they are to be told.
constexpr std::array kOfStarter = {"hostfile",      "include",       "exclude",       "ssh-port",
                                   "launcher-args", "export",        "topology-conf", "dry-run",
                                   "remote-dtrain", "nnodes",        "master-addr",   "master-port",
                                   "ssh-fanout",    "nproc-per-node"};
constexpr std::array kNeedHosts = {"--include",       "--exclude",   "--ssh-port",
                                   "--launcher-args", "--export",    "--topology-conf",
                                   "--remote-dtrain", "--ssh-fanout"};
constexpr std::array kOfOneNode = {"--node-rank", "--rdzv-endpoint", "--token-file", "--local-addr",
                                   "--standalone"};

// The last value of a flag; "" when it was not given.
std::string Given(const CLI::App& app, const char* flag) {
  const CLI::Option* const option = app.get_option(flag);
  return option->count() == 0 ? "" : option->results().back();
}

// Leaves `value` as it is when the flag was not given.
absl::Status ReadNumber(const CLI::App& app, const char* flag, int high, int& value) {
  if (app.count(flag) == 0) {
    return absl::OkStatus();
  }
  const std::string text = Given(app, flag);
  if (!absl::SimpleAtoi(text, &value) || value < 1 || value > high) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s is \"%s\"; allowed with --hostfile: a number from 1 to %d", flag, text, high));
  }
  return absl::OkStatus();
}

absl::Status ReadFanout(const CLI::App& app, int& fanout) {
  constexpr int kFanoutMax = 1024;
  const std::string text = Given(app, "--ssh-fanout");
  if (app.count("--ssh-fanout") > 0 &&
      (!absl::SimpleAtoi(text, &fanout) || fanout < 0 || fanout == 1 || fanout > kFanoutMax)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--ssh-fanout is \"%s\"; allowed: 2 to %d, or 0 to start all hosts from this one", text,
        kFanoutMax));
  }
  return absl::OkStatus();
}

}  // namespace

void AddHostFlags(CLI::App& app, HostOptions& hosts) {
  const auto add = [&app](const char* name, const char* placeholder, std::string& value,
                          const char* text) {
    app.add_option(name, value, text)->option_text(placeholder);
  };
  add("-H,--hostfile", "FILE", hosts.hostfile,
      "Start all hosts of this file over ssh, each with as many ranks as it has slots. A line is: "
      "HOST slots=N. --nnodes limits the hosts (with MIN:MAX, those beyond MAX are spares), "
      "--nproc-per-node the slots of each. Default: none");
  add("-i,--include", "HOSTS", hosts.include,
      "Use only these hosts of the file, or slots of them: HOST:SLOT,SLOT@HOST. Default: all");
  add("-e,--exclude", "HOSTS", hosts.exclude,
      "Use all hosts and slots of the file but these. Default: none");
  add("--topology-conf", "FILE", hosts.topology_conf,
      "Number the hosts so that those at one switch of the network are neighbours. FILE has the "
      "form of Slurm's topology.conf, or an address of each node a line, as in "
      "SLURM_TOPOLOGY_ADDR. Default: the order of the hostfile");
  add("--ssh-port", "PORT", hosts.ssh_port, "Port of the hosts' ssh servers. Default: ssh's own");
  add("--launcher-args", "WORDS", hosts.launcher_args,
      "More options for ssh, for example \"-l USER\". No shell reads them. Default: none");
  add("--ssh-fanout", "N", hosts.ssh_fanout,
      "With more than N hosts, start N of them by ssh from here, which start the others in the "
      "same way; 0 starts all from here. Default: 64");
  app.add_option(
         "--export", hosts.exports,
         "Send this variable to the ranks on all hosts, beside those that begin with NCCL_, "
         "DTRAIN_, OMP_ or UCX_ and those in .deepspeed_env. May be repeated. Default: none")
      ->option_text("NAME[=VALUE]");
  add("--remote-dtrain", "PATH", hosts.dtrain,
      "Path of the program dtrain on the hosts. Default: the path of this one");
  app.add_flag("--dry-run", hosts.dry_run,
               "Print what would be started on each host, on this node without --hostfile, or by "
               "srun in a Slurm job of several nodes, and start nothing. Default: off");
}

std::vector<std::string> FlagsForAgents(const CLI::App& app, const std::vector<std::string>& own) {
  std::vector<std::string> flags;
  for (size_t i = 0; i < own.size();) {
    const CLI::Option* const option = app.get_option(own[i].substr(0, own[i].find('=')));
    const size_t words = option->get_items_expected_max() > 0 ? 2 : 1;
    if (std::none_of(kOfStarter.begin(), kOfStarter.end(),
                     [option](const char* name) { return option->check_lname(name); })) {
      flags.insert(flags.end(), own.begin() + static_cast<ptrdiff_t>(i),
                   own.begin() + static_cast<ptrdiff_t>(i + words));
    }
    i += words;
  }
  return flags;
}

absl::Status CheckHostFlags(const CLI::App& app, HostOptions& hosts) {
  const bool has_file = app.count("--hostfile") > 0;
  for (const char* flag : kNeedHosts) {
    if (!has_file && app.count(flag) > 0) {
      return absl::InvalidArgumentError(absl::StrCat(flag, " needs --hostfile FILE"));
    }
  }
  if (!has_file) {
    return absl::OkStatus();
  }
  if (hosts.hostfile.empty()) {
    return absl::InvalidArgumentError("--hostfile is \"\"; allowed: the name of a file");
  }
  for (const char* flag : kOfOneNode) {
    if (app.count(flag) > 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s contradicts --hostfile, which starts all nodes and gives each its "
                          "own; leave out one of them",
                          flag));
    }
  }
  int ssh_port = 0;
  DT_RETURN_IF_ERROR(ReadNumber(app, "--ssh-port", 65535, ssh_port));
  DT_RETURN_IF_ERROR(ReadFanout(app, hosts.fanout));
  // With MIN:MAX all hosts of the file are started: those above MAX are spares.
  if (Given(app, "--nnodes").find(':') == std::string::npos) {
    DT_RETURN_IF_ERROR(ReadNumber(app, "--nnodes", 65536, hosts.hosts_max));
  }
  DT_RETURN_IF_ERROR(ReadNumber(app, "--nproc-per-node", 65536, hosts.slots_max));
  DT_RETURN_IF_ERROR(ReadNumber(app, "--master-port", 65535, hosts.port));
  if (const std::string address = Given(app, "--master-addr"); !address.empty()) {
    DT_ASSIGN_OR_RETURN(hosts.address, MasterHost(address));
  }
  return absl::OkStatus();
}

}  // namespace dtrain::launcher
