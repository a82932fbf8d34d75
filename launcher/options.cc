#include "launcher/options.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/console/command_line.h"
#include "base/status.h"
#include "base/text/nearest.h"
#include "launcher/cluster/place.h"
#include "launcher/nodes/meeting_point.h"
#include "launcher/nodes/token.h"
#include "launcher/ranks/signals.h"
#include "launcher/topology/network_profile.h"
#include "launcher/torchrun_flags.h"

namespace dtrain::launcher {
namespace {

constexpr char kDescription[] =
    "Starts a program as N ranks that train together and watches them. If one fails, it stops the "
    "others, says why, and ends with the exit code of the rank that failed first.";
constexpr char kFooter[] =
    R"(Everything after the program's name goes to the program. Each option takes its
default from the variable PET_NAME (for example PET_NNODES), as with torchrun.
Ctrl-C and SIGTERM let the ranks save and stop; a second one stops at once.
`dtrain exit-codes` lists the exit codes.

Examples:
  dtrain launch --nproc-per-node 2 -- ./gpt config.json
  dtrain launch --nproc-per-node auto ./gpt config.json --set train_steps=100
  dtrain launch --nproc-per-node 2 --tee 3 --max-restarts 3 ./gpt config.json

Several nodes, started over ssh. Each line of the file is: HOST slots=RANKS
  dtrain launch --hostfile hosts ./gpt config.json
  dtrain launch --hostfile hosts --exclude n3 --dry-run ./gpt config.json

In a Slurm job of several nodes it starts itself on all of them by srun:
  sbatch --nodes 2 --wrap "dtrain launch ./gpt config.json"

With 2 to 4 hosts of the file, also when some are lost; the others are spares:
  dtrain launch --hostfile hosts --nnodes 2:4 ./gpt config.json

Without ssh, one command on each node. Make the token file once and copy it:
  (umask 077; head -c 32 /dev/urandom > token)
  dtrain launch --nnodes 2 --node-rank 0 --rdzv-endpoint n0:29500 \
    --token-file token ./gpt config.json
  dtrain launch --nnodes 2 --node-rank 1 --rdzv-endpoint n0:29500 \
    --token-file token ./gpt config.json)";

constexpr int kNodesMax = 65536;

// The values of the flags before they are checked.
struct Raw {
  std::string nnodes = "1";
  std::string node_rank = "0";
  std::string max_restarts = "0";
  std::string rdzv_conf;
  std::string master_addr;
  std::string master_port = "29500";
  std::string signals = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";
  std::string tee = "0";
  std::string redirects = "0";
  std::string local_filter;
  std::string stop_grace = "300";
  std::string exit_barrier = "300";
  bool standalone = false;
  bool no_python = false;
  bool no_bind = false;
  bool bind = false;
  bool no_tensorboard = false;
  bool no_reuse = false;
};

// Flags of torchrun and DeepSpeed that --help does not show.
void AddHiddenFlags(CLI::App& app, Raw& raw) {
  const auto hidden = [&app](const char* name, auto& value) {
    app.add_option(name, value, "")->group("");
  };
  hidden("--master-addr", raw.master_addr);
  hidden("--master-port", raw.master_port);
  app.add_flag("--standalone", raw.standalone, "")->group("");
  app.add_flag("--no-python", raw.no_python, "")->group("");
  app.add_flag("--bind-cores", raw.bind, "")->group("");
  AddTorchrunFlags(app);
}

void AddReuseFlags(CLI::App& app, Raw& raw, LaunchOptions& options) {
  app.add_flag("--no-reuse", raw.no_reuse,
               "Start all processes anew in each attempt. Default: those of ranks that only lost "
               "another one, or saved before a change of nodes, are used again");
  app.add_flag("--reserve", options.reserve,
               "Keep one more process of the program on each node, loaded and waiting, which takes "
               "the place of the next lost rank at once. It takes the memory of a program that has "
               "just started (about 120 MB with LibTorch for CPUs) and no CPU time. Needs "
               "--max-restarts or --nnodes MIN:MAX. Default: off");
}

void AddFlags(CLI::App& app, LaunchOptions& options, Raw& raw) {
  const auto add = [&app](const char* name, const char* placeholder, std::string& value,
                          const char* text) {
    CLI::Option* const option = app.add_option(name, value, text)->option_text(placeholder);
    if (!value.empty()) {
      option->capture_default_str();
    }
  };
  add("--nproc-per-node", "N", options.ranks_per_node,
      "Number of ranks on this node: a number, auto (one for each GPU, or for each core where "
      "there is no GPU), cpu (one for each core) or gpu (one for each GPU). In a Slurm job the "
      "default is one for each GPU, if there are any");
  add("--nnodes", "N", raw.nnodes,
      "Number of nodes. MIN:MAX starts with MIN nodes or more, goes on when nodes are lost or come "
      "back, and keeps nodes above MAX as spares; the global batch stays the same");
  add("--node-rank", "N", raw.node_rank, "Number of this node, from 0");
  add("--rdzv-endpoint", "HOST:PORT", options.rendezvous,
      "Address of node 0 and a free port there. Needed for several nodes");
  add("--token-file", "FILE", options.token_file,
      "Secret of the job, the same on all nodes: 32 bytes or 64 hex digits in a file of mode 0600, "
      "or 32 bytes on stdin (-). Needed for several nodes, but not inside Slurm");
  add("--rdzv-id", "NAME", options.rendezvous_id, "Name of the run. Default: random");
  add("--rdzv-conf", "KEY=VALUE", raw.rdzv_conf,
      "join_timeout=SECONDS limits how long to wait for the other nodes, last_call_timeout=SECONDS "
      "how long MIN of MIN:MAX nodes wait for more; torchrun's other keys have no effect. Default: "
      "join_timeout=300,last_call_timeout=30");
  add("--local-addr", "ADDRESS", options.local_address,
      "Address at which other nodes reach this one. Default: found automatically");
  add("--run-dir", "DIR", options.run_dir,
      "Folder for logs, metrics and checkpoints. Default: the program's --run-dir, else "
      "runs/PROGRAM");
  add("--log-dir", "DIR", options.log_dir, "Folder for the ranks' output. Default: RUN_DIR/logs");
  add("-t,--tee", "STREAMS", raw.tee,
      "Show the output of more ranks than rank 0: 1 shows stdout, 2 stderr, 3 both, 0 neither; "
      "0:1,1:3 chooses for each local rank");
  add("-r,--redirects", "STREAMS", raw.redirects,
      "Has no effect; accepted because torchrun has it. All output is always written to files");
  add("--local-ranks-filter", "RANKS", raw.local_filter,
      "Show the output of these local ranks only, for example 0,2. Default: all that --tee "
      "chooses");
  add("--max-restarts", "N", raw.max_restarts,
      "Start the job again up to N times after a temporary failure or a killed rank");
  add("--signals-to-handle", "SIGNALS", raw.signals,
      "Signals at which all ranks save a checkpoint and stop. SIGTERM and SIGINT always are among "
      "them, as dtrain stops jobs by these, and SIGUSR1 in a Slurm job");
  add("--stop-grace", "SECONDS", raw.stop_grace, "Time that ranks have to save and stop");
  add("--exit-barrier", "SECONDS", raw.exit_barrier,
      "Time that other ranks may still run after the first has ended with exit code 0");
  add("--role", "NAME", options.role, "Value of the variable ROLE_NAME in each rank's environment");
  app.add_flag("--no-bind", raw.no_bind,
               "Let ranks run on any core. Default: each rank is bound to cores of its own");
  add("--network-profile", "NAME", options.network_profile,
      "Set the variables for NCCL that this kind of network needs, where they are not set: oci, "
      "gcp, aws-efa, azure or roce-generic. Default: none are set");
  AddReuseFlags(app, raw, options);
  app.add_flag("--no-tensorboard", raw.no_tensorboard,
               "Write no TensorBoard files. Default: written to RUN_DIR/report/tensorboard");
  app.add_flag("-q,--quiet", options.quiet,
               "Print errors only: no progress, and only the ranks' output that goes to stderr or "
               "that --tee chooses. Default: off");
  AddHostFlags(app, options.hosts);
  AddHiddenFlags(app, raw);
  for (CLI::Option* option : app.get_options()) {
    option->multi_option_policy(option->check_lname("export") ? CLI::MultiOptionPolicy::TakeAll
                                                              : CLI::MultiOptionPolicy::TakeLast);
  }
}

// The launcher's own arguments, spelt as CLI11 knows them, and the start of the program's.
struct Split {
  std::vector<std::string> own;
  size_t program_at = 0;
};

absl::StatusOr<Split> SplitArguments(const CLI::App& app,
                                     const std::vector<std::string>& arguments) {
  Split split;
  size_t i = 0;
  for (; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") {
      ++i;
      break;
    }
    if (argument.size() < 2 || argument[0] != '-') {
      break;
    }
    const size_t equals = argument.find('=');
    const size_t dashes = absl::StartsWith(argument, "--") ? 2 : 1;
    std::string name = argument.substr(dashes, equals - dashes);
    if (dashes == 2) {
      name = OwnFlag(absl::StrReplaceAll(name, {{"_", "-"}}));
    }
    if (const std::string why = WhyRefused(name); !why.empty()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s is not supported: %s", argument.substr(0, equals), why));
    }
    const std::string spelt = absl::StrCat(dashes == 2 ? "--" : "-", name);
    const CLI::Option* const option = app.get_option_no_throw(spelt);
    if (option == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          UnknownOption(argument.substr(0, equals), FlagNames(app)), "; see dtrain launch --help"));
    }
    if (option->get_items_expected_max() == 0) {
      split.own.push_back(
          equals == std::string::npos ? spelt : absl::StrCat(spelt, argument.substr(equals)));
      continue;
    }
    if (equals == std::string::npos && i + 1 == arguments.size()) {
      return absl::InvalidArgumentError(absl::StrFormat("%s needs a value", argument));
    }
    // Name and value are two words: after "--name=" CLI11 would take the next word for the value.
    split.own.push_back(spelt);
    split.own.push_back(equals == std::string::npos ? arguments[++i] : argument.substr(equals + 1));
  }
  split.program_at = i;
  return split;
}

absl::StatusOr<int> Integer(const char* flag, const std::string& text, int low, int high) {
  int value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < low || value > high) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s is \"%s\"; allowed: a number from %d to %d", flag, text, low, high));
  }
  return value;
}

absl::Status ReadNodes(const std::string& text, LaunchOptions& options) {
  const std::vector<std::string> ends = absl::StrSplit(text, ':');
  if (ends.size() > 2) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--nnodes is \"%s\"; allowed: N or MIN:MAX", text));
  }
  DT_ASSIGN_OR_RETURN(options.nodes_min, Integer("--nnodes", ends.front(), 1, kNodesMax));
  DT_ASSIGN_OR_RETURN(options.nodes, Integer("--nnodes", ends.back(), 1, kNodesMax));
  if (options.nodes_min > options.nodes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--nnodes is \"%s\"; MIN must not be above MAX", text));
  }
  return absl::OkStatus();
}

absl::Status Check(const CLI::App& app, const Raw& raw, ParsedLaunch& parsed) {
  LaunchOptions& options = parsed.options;
  DT_RETURN_IF_ERROR(CheckHostFlags(app, options.hosts));
  DT_RETURN_IF_ERROR(ReadNodes(raw.nnodes, options));
  const bool is_elastic = options.nodes_min < options.nodes;
  DT_ASSIGN_OR_RETURN(options.node_rank, Integer("--node-rank", raw.node_rank, 0,
                                                 (is_elastic ? kNodesMax : options.nodes) - 1));
  DT_ASSIGN_OR_RETURN(options.restarts_max,
                      Integer("--max-restarts", raw.max_restarts, 0, 1000000));
  const bool in_slurm = options.place.has_value() && options.place->is_slurm;
  DT_ASSIGN_OR_RETURN(options.signals, ParseSignals(raw.signals));
  options.signals = WithOwnSignals(std::move(options.signals), in_slurm);
  DT_ASSIGN_OR_RETURN(options.tee, ParseStreams("--tee", raw.tee));
  DT_RETURN_IF_ERROR(ParseStreams("--redirects", raw.redirects).status());
  DT_ASSIGN_OR_RETURN(options.stop_grace, ParseSeconds("--stop-grace", raw.stop_grace));
  DT_ASSIGN_OR_RETURN(options.exit_barrier, ParseSeconds("--exit-barrier", raw.exit_barrier));
  DT_RETURN_IF_ERROR(RanksOnNode(options.ranks_per_node, 1, 1).status());
  for (const absl::string_view part : absl::StrSplit(raw.local_filter, ',', absl::SkipEmpty())) {
    DT_ASSIGN_OR_RETURN(const int local,
                        Integer("--local-ranks-filter", std::string(part), 0, 65535));
    options.local_filter.push_back(local);
  }
  DT_RETURN_IF_ERROR(ReadRendezvousConf(raw.rdzv_conf, parsed));
  DT_RETURN_IF_ERROR(CheckTorchrunFlags(app, parsed));
  if (!options.network_profile.empty()) {
    DT_RETURN_IF_ERROR(CheckNetworkProfile(options.network_profile));
  }
  options.bind_cores = !raw.no_bind;
  options.tensorboard = !raw.no_tensorboard;
  options.reuse = !raw.no_reuse;
  if (options.reserve && raw.no_reuse) {
    return absl::InvalidArgumentError("--reserve and --no-reuse contradict each other");
  }
  if (raw.bind && raw.no_bind) {
    return absl::InvalidArgumentError("--bind-cores and --no-bind contradict each other");
  }
  if (!options.hosts.hostfile.empty()) {
    return absl::OkStatus();  // The rest is about one node.
  }
  if (raw.standalone && options.nodes > 1) {
    return absl::InvalidArgumentError("--standalone means one node; leave out --nnodes");
  }
  const bool is_of_place = options.place.has_value() && app.count("--rdzv-endpoint") == 0;
  DT_ASSIGN_OR_RETURN(
      options.rendezvous,
      MeetingPoint({options.nodes, raw.nnodes, options.rendezvous,
                    is_of_place ? absl::StrCat("the address of node 0 by ", options.place->source)
                                : "--rdzv-endpoint",
                    raw.master_addr, raw.master_port}));
  // The launchers of a Slurm step share a token that node 0 makes.
  if (options.nodes > 1 && options.token_file.empty() && !in_slurm) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--nnodes %s needs --token-file FILE, the same on all nodes; make one by: (umask 077; head "
        "-c 32 /dev/urandom > token)",
        raw.nnodes));
  }
  return absl::OkStatus();
}

// Takes from Slurm's or Kubernetes' variables what no flag says.
absl::Status TakePlace(const CLI::App& app, const std::vector<std::string>& typed,
                       const Environment& environment, Raw& raw, LaunchOptions& options) {
  if (raw.standalone || app.count("--hostfile") > 0) {
    return absl::OkStatus();
  }
  DT_ASSIGN_OR_RETURN(options.place, FindNodePlace(environment));
  if (!options.place.has_value()) {
    return absl::OkStatus();
  }
  const auto is_typed = [&typed](const char* flag) {
    return std::find(typed.begin(), typed.end(), flag) != typed.end();
  };
  NodeFlags flags;
  flags.nodes = {app.count("--nnodes") > 0 ? raw.nnodes : "", is_typed("--nnodes")};
  flags.node_rank = {app.count("--node-rank") > 0 ? raw.node_rank : "", is_typed("--node-rank")};
  flags.endpoint = {options.rendezvous.empty() ? raw.master_addr : options.rendezvous,
                    is_typed("--rdzv-endpoint") || is_typed("--master-addr")};
  const bool has_endpoint = !flags.endpoint.value.empty();
  DT_RETURN_IF_ERROR(FillFromPlace(*options.place, flags));
  raw.nnodes = flags.nodes.value.empty() ? raw.nnodes : flags.nodes.value;
  raw.node_rank = flags.node_rank.value.empty() ? raw.node_rank : flags.node_rank.value;
  options.rendezvous = has_endpoint ? options.rendezvous : flags.endpoint.value;
  if (options.place->is_slurm) {
    options.ranks_by_gpus = app.count("--nproc-per-node") == 0;
    // The output of a step is one text, in which node 0 speaks for all.
    options.quiet = options.quiet || options.place->node_rank.value > 0;
  }
  if (options.place->starts_step && options.token_file.empty()) {
    options.token_file = kTokenOnInput;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<StreamChoice> ParseStreams(const std::string& flag, const std::string& text) {
  StreamChoice choice;
  const auto bad = [&] {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s is \"%s\"; allowed: 0 to 3, or LOCAL_RANK:0-3 separated by commas", flag, text));
  };
  if (absl::SimpleAtoi(text, &choice.all)) {
    return choice.all >= 0 && choice.all <= 3 ? absl::StatusOr<StreamChoice>(choice) : bad();
  }
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<std::string> pair = absl::StrSplit(part, ':');
    int local = 0;
    int streams = 0;
    if (pair.size() != 2 || !absl::SimpleAtoi(pair[0], &local) || local < 0 || local > 65535 ||
        !absl::SimpleAtoi(pair[1], &streams) || streams < 0 || streams > 3) {
      return bad();
    }
    choice.by_local.resize(std::max(choice.by_local.size(), static_cast<size_t>(local) + 1), -1);
    choice.by_local[static_cast<size_t>(local)] = streams;
  }
  return choice;
}

absl::StatusOr<absl::Duration> ParseSeconds(const char* flag, const std::string& text) {
  double seconds = 0;
  if (!absl::SimpleAtod(text, &seconds) || !std::isfinite(seconds) || seconds < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s is \"%s\"; allowed: seconds, 0 or more", flag, text));
  }
  return absl::Seconds(seconds);
}

absl::StatusOr<int> RanksOnNode(const std::string& text, int cpus, int gpus) {
  if (text == "auto") {
    return gpus > 0 ? gpus : std::max(1, cpus);
  }
  if (text == "cpu") {
    return std::max(1, cpus);
  }
  if (text == "gpu") {
    return gpus > 0 ? absl::StatusOr<int>(gpus)
                    : absl::InvalidArgumentError(
                          "--nproc-per-node gpu: no GPU found on this node; use cpu or a number");
  }
  int ranks = 0;
  if (!absl::SimpleAtoi(text, &ranks) || ranks < 1 || ranks > 65536) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--nproc-per-node is \"%s\"; allowed: auto, cpu, gpu or a number from 1 to 65536", text));
  }
  return ranks;
}

absl::Status CheckLocalRanks(const LaunchOptions& options, int ranks) {
  const std::string allowed =
      ranks == 1 ? "1 rank on a node: 0"
                 : absl::StrFormat("%d ranks on a node: 0 to %d", ranks, ranks - 1);
  const auto check = [&](const char* flag, int local) {
    return local < ranks ? absl::OkStatus()
                         : absl::InvalidArgumentError(absl::StrFormat(
                               "%s names local rank %d; allowed with %s", flag, local, allowed));
  };
  DT_RETURN_IF_ERROR(check("--tee", static_cast<int>(options.tee.by_local.size()) - 1));
  const std::vector<int>& filter = options.local_filter;
  return filter.empty()
             ? absl::OkStatus()
             : check("--local-ranks-filter", *std::max_element(filter.begin(), filter.end()));
}

absl::StatusOr<ParsedLaunch> ParseLaunch(const std::vector<std::string>& arguments,
                                         const Environment& environment) {
  ParsedLaunch parsed;
  Raw raw;
  CLI::App app(kDescription, "dtrain launch");
  app.footer(kFooter);
  AddFlags(app, parsed.options, raw);
  DT_ASSIGN_OR_RETURN(const Split split, SplitArguments(app, arguments));
  DT_ASSIGN_OR_RETURN(std::vector<std::string> own, EnvironmentFlags(app, environment, parsed));
  own.insert(own.end(), split.own.begin(), split.own.end());
  std::vector<std::string> flags = FlagsForAgents(app, own);
  std::reverse(own.begin(), own.end());  // CLI11 takes its vector from the back.
  try {
    app.parse(own);
  } catch (const CLI::CallForHelp&) {
    parsed.help = absl::StrReplaceAll(
        HelpText(app),
        {{"dtrain launch [options]", "dtrain launch [options] [--] PROGRAM [arguments]"}});
    return parsed;
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(error.what());
  }
  DT_RETURN_IF_ERROR(TakePlace(app, split.own, environment, raw, parsed.options));
  DT_RETURN_IF_ERROR(Check(app, raw, parsed));
  parsed.options.hosts.flags = std::move(flags);
  if (split.program_at >= arguments.size()) {
    return absl::InvalidArgumentError(
        "no program given; example: dtrain launch --nproc-per-node 2 -- ./gpt config.json");
  }
  parsed.options.program = arguments[split.program_at];
  parsed.options.arguments.assign(arguments.begin() + static_cast<ptrdiff_t>(split.program_at) + 1,
                                  arguments.end());
  return parsed;
}

}  // namespace dtrain::launcher
