#include "launcher/torchrun_flags.h"

#include <algorithm>
#include <array>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "base/text/nearest.h"

namespace dtrain::launcher {
namespace {

// A flag that changes nothing.
struct Idle {
  const char* flag;
  absl::string_view values;  // Separated by ", "; "": any text.
  const char* why;           // Why nothing depends on it.
  bool is_noted = true;      // False: it says what is done anyway.
};

constexpr char kVariablePrefix[] = "PET_";
constexpr char kAllInFiles[] = "all output of all ranks is written to files below --log-dir";

constexpr std::array<Idle, 9> kIdle = {{
    {"--rdzv-backend", "c10d, static", "the nodes always meet at node 0", false},
    {"--start-method", "spawn, fork, forkserver", "each rank is a program that is started anew"},
    {"--event-log-handler", "", "events are written to events.jsonl in the run directory"},
    {"--monitor-interval", "", "the end of a rank is seen at once"},
    {"--redirects", "", kAllInFiles},
    {"--logs-specs", "", kAllInFiles},
    {"--duplicate-stdout-filters", "", kAllInFiles},
    {"--duplicate-stderr-filters", "", kAllInFiles},
    {"--numa-binding", "node, socket, exclusive, core-complex",
     "each rank is bound to cores of its own, near its GPU; --no-bind lets it run on any"},
}};

// Keys of --rdzv-conf by which torchrun sets up its own rendezvous.
constexpr std::array kIdleKeys = {"timeout",
                                  "close_timeout",
                                  "heartbeat_timeout",
                                  "keep_alive_interval",
                                  "keep_alive_max_attempt",
                                  "read_timeout",
                                  "is_host",
                                  "rank",
                                  "store_type"};

// Whether `values` lists `value`, or anything is allowed.
bool Allows(absl::string_view values, absl::string_view value) {
  const std::vector<absl::string_view> all = absl::StrSplit(values, ", ");
  return values.empty() || std::find(all.begin(), all.end(), value) != all.end();
}

absl::Status RefuseKey(const std::string& key) {
  std::vector<std::string> known = {"join_timeout", "last_call_timeout"};
  const std::string allowed = absl::StrJoin(known, ", ");
  known.insert(known.end(), kIdleKeys.begin(), kIdleKeys.end());
  const std::string nearest = Nearest(key, known);
  return absl::InvalidArgumentError(absl::StrFormat(
      "--rdzv-conf has the unknown key \"%s\"; %s: %s", absl::CHexEscape(key),
      nearest.empty() ? "allowed" : absl::StrCat("did you mean ", nearest, "? Allowed"), allowed));
}

// The variable that sets a flag.
std::string VariableOf(const std::string& name) {
  return absl::StrCat(kVariablePrefix,
                      absl::AsciiStrToUpper(absl::StrReplaceAll(name, {{"-", "_"}})));
}

// Whether the variable of a flag without a value sets it.
absl::StatusOr<bool> IsOn(const std::string& variable, const std::string& value) {
  if (value == "1") {
    return true;
  }
  return value.empty() || value == "0"
             ? absl::StatusOr<bool>(false)
             : absl::InvalidArgumentError(absl::StrFormat("%s is \"%s\"; allowed: 0 or 1", variable,
                                                          absl::CHexEscape(value)));
}

// A variable that sets none of `flags` may belong to a flag that is refused, or be misspelt.
absl::Status CheckVariable(const std::string& variable, const std::string& value,
                           const std::vector<std::string>& flags, ParsedLaunch& parsed) {
  const std::string name = absl::StrReplaceAll(
      absl::AsciiStrToLower(absl::StripPrefix(variable, kVariablePrefix)), {{"_", "-"}});
  const bool is_off = value.empty() || value == "0";
  if (const std::string why = WhyRefused(name); !why.empty() && !is_off) {
    return absl::InvalidArgumentError(absl::StrFormat("%s is not supported: %s", variable, why));
  }
  if (const std::string meant = Misspelt(name, flags); !meant.empty()) {
    parsed.notes.push_back(
        absl::StrFormat("%s has no effect; did you mean %s?", variable, VariableOf(meant)));
  }
  return absl::OkStatus();
}

}  // namespace

std::string OwnFlag(const std::string& name) {
  return name == "num-gpus"             ? "nproc-per-node"
         : name == "num-nodes"          ? "nnodes"
         : name == "bind-cores-to-rank" ? "bind-cores"
                                        : name;
}

std::string WhyRefused(const std::string& name) {
  if (name == "launcher" || name == "no-ssh") {
    return "hosts of --hostfile are started over ssh; under srun, mpirun or torchrun start the "
           "program itself, and without any of them run one `dtrain launch --nnodes N --node-rank "
           "R --rdzv-endpoint HOST:PORT --token-file F` on each node";
  }
  if (name == "module" || name == "m") {
    return "ranks are programs; name a Python module as: python -m";
  }
  if (name == "run-path") {
    return "ranks are programs; start a Python file as: python FILE";
  }
  return name == "virtual-local-rank"
             ? "each rank sees all GPUs of its node and takes that of its LOCAL_RANK; leave it out"
             : "";
}

std::vector<std::string> FlagNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      names.push_back(name);
    }
  }
  return names;
}

absl::StatusOr<std::vector<std::string>> EnvironmentFlags(const CLI::App& app,
                                                          const Environment& environment,
                                                          ParsedLaunch& parsed) {
  std::vector<std::string> flags;
  const std::vector<std::string> names = FlagNames(app);
  for (const std::string& name : names) {
    const auto found = environment.find(VariableOf(name));
    if (found == environment.end() || name == "help") {
      continue;
    }
    const std::string flag = absl::StrCat("--", name);
    if (app.get_option(flag)->get_items_expected_max() > 0) {
      flags.push_back(flag);
      flags.push_back(found->second);
    } else {
      DT_ASSIGN_OR_RETURN(const bool is_on, IsOn(found->first, found->second));
      if (is_on) {
        flags.push_back(flag);
      }
    }
  }
  for (const auto& [variable, value] : environment) {
    if (absl::StartsWith(variable, kVariablePrefix)) {
      DT_RETURN_IF_ERROR(CheckVariable(variable, value, names, parsed));
    }
  }
  return flags;
}

void AddTorchrunFlags(CLI::App& app) {
  for (const Idle& idle : kIdle) {
    if (app.get_option_no_throw(idle.flag) == nullptr) {  // --help shows --redirects.
      app.add_option(idle.flag)->group("");
    }
  }
}

absl::Status CheckTorchrunFlags(const CLI::App& app, ParsedLaunch& parsed) {
  for (const Idle& idle : kIdle) {
    if (app.count(idle.flag) == 0) {
      continue;
    }
    const std::string value = app.get_option(idle.flag)->results().back();
    if (!Allows(idle.values, value)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s is \"%s\"; allowed: %s; it can be left out, as %s", idle.flag,
                          absl::CHexEscape(value), idle.values, idle.why));
    }
    if (idle.is_noted) {
      parsed.notes.push_back(absl::StrFormat("%s has no effect: %s", idle.flag, idle.why));
    }
  }
  if (app.count("--numa-binding") > 0 && app.count("--no-bind") > 0) {
    return absl::InvalidArgumentError("--numa-binding and --no-bind contradict each other");
  }
  constexpr char kInterval[] = "--monitor-interval";
  return app.count(kInterval) == 0
             ? absl::OkStatus()
             : ParseSeconds(kInterval, app.get_option(kInterval)->results().back()).status();
}

absl::Status ReadRendezvousConf(const std::string& pairs, ParsedLaunch& parsed) {
  LaunchOptions& options = parsed.options;
  for (const auto part : absl::StrSplit(pairs, absl::ByAnyChar(", "), absl::SkipEmpty())) {
    const std::vector<std::string> pair = absl::StrSplit(part, absl::MaxSplits('=', 1));
    if (pair.size() != 2) {
      return absl::InvalidArgumentError(
          absl::StrFormat("--rdzv-conf has \"%s\"; allowed: KEY=VALUE,KEY=VALUE", part));
    }
    const std::string& key = pair[0];
    if (key == "join_timeout") {
      DT_ASSIGN_OR_RETURN(options.join_timeout, ParseSeconds("--rdzv-conf join_timeout", pair[1]));
    } else if (key == "last_call_timeout") {
      DT_ASSIGN_OR_RETURN(options.last_call,
                          ParseSeconds("--rdzv-conf last_call_timeout", pair[1]));
    } else if (std::find(kIdleKeys.begin(), kIdleKeys.end(), key) == kIdleKeys.end()) {
      return RefuseKey(key);
    } else {
      parsed.notes.push_back(absl::StrFormat(
          "--rdzv-conf %s has no effect: it sets up a rendezvous of torchrun's own", key));
    }
  }
  return absl::OkStatus();
}

}  // namespace dtrain::launcher
