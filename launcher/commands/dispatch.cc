#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/status.h"
#include "base/version.h"
#include "launcher/commands/commands.h"
#include "launcher/launch.h"
#include "launcher/nearest.h"
#include "launcher/topology/commands.h"

namespace dtrain::launcher {
namespace {

using Arguments = std::vector<std::string>;

struct Subcommand {
  const char* name;
  const char* summary;
  std::function<int(const Arguments&, const Environment&)> run;
};

const std::vector<Subcommand>& Subcommands() {
  static const std::vector<Subcommand> all = {
      {"launch", "start a program as N ranks, here or on several nodes", LaunchCommand},
      {"logs", "show or follow the logs of a run",
       [](const Arguments& a, const Environment&) { return LogsCommand(a); }},
      {"trace", "one timeline of the last collectives of all ranks",
       [](const Arguments& a, const Environment&) { return TraceCommand(a); }},
      {"topo", "cores, NUMA nodes, GPUs and NICs of this node, and where ranks would run",
       [](const Arguments& a, const Environment&) { return TopoMain(a); }},
      {"doctor", "what was found here and what is wrong with it", DoctorMain},
      {"env", "what launcher this process runs under, and as which rank", EnvCommand},
      {"exit-codes", "the exit codes of ranks and jobs",
       [](const Arguments& a, const Environment&) { return ExitCodesCommand(a); }},
  };
  return all;
}

std::string OwnFolder() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "." : path.parent_path().string();
}

// The names after "dtrain-" of the programs beside this one.
std::vector<std::string> Siblings() {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(OwnFolder(), ignored)) {
    const std::string name = entry.path().filename();
    if (absl::StartsWith(name, "dtrain-") && access(entry.path().c_str(), X_OK) == 0) {
      names.push_back(name.substr(7));
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string Help() {
  std::string text =
      "Usage: dtrain COMMAND [arguments]\n"
      "Distributed training in native C++: starts, watches and inspects jobs.\n\nCommands:\n";
  for (const Subcommand& command : Subcommands()) {
    absl::StrAppendFormat(&text, "  %-14s %s\n", command.name, command.summary);
  }
  for (const std::string& name : Siblings()) {
    absl::StrAppendFormat(&text, "  %-14s (program dtrain-%s)\n",
                          absl::StrReplaceAll(name, {{"-", " "}}), name);
  }
  absl::StrAppend(&text,
                  "\nEach has its own --help. `dtrain --version` prints the version.\n"
                  "Example: dtrain launch --nproc-per-node 2 -- ./gpt config.json\n");
  return text;
}

// Replaces this process by dtrain-NAME, or dtrain-NAME-NEXT (`dtrain bench comm`); returns only
// when that is not possible.
int RunSibling(const Arguments& arguments) {
  std::string path = absl::StrCat(OwnFolder(), "/dtrain-", arguments[0]);
  size_t first = 1;
  if (arguments.size() > 1 && access(absl::StrCat(path, "-", arguments[1]).c_str(), X_OK) == 0) {
    absl::StrAppend(&path, "-", arguments[1]);
    first = 2;
  }
  std::vector<char*> argv = {const_cast<char*>(path.c_str())};
  for (size_t i = first; i < arguments.size(); ++i) {
    argv.push_back(const_cast<char*>(arguments[i].c_str()));
  }
  argv.push_back(nullptr);
  execv(path.c_str(), argv.data());
  if (errno != ENOENT) {
    std::fprintf(stderr, "dtrain: cannot execute %s: %s\n", path.c_str(), std::strerror(errno));
    return kExitUsage;
  }
  std::vector<std::string> names = Siblings();
  for (const Subcommand& command : Subcommands()) {
    names.emplace_back(command.name);
  }
  const std::string nearest = Nearest(arguments[0], names);
  std::fprintf(stderr, "dtrain: unknown command %s%s\n", arguments[0].c_str(),
               nearest.empty() ? "; dtrain --help lists all"
                               : absl::StrFormat("; did you mean %s?", nearest).c_str());
  return kExitUsage;
}

}  // namespace

bool AskedForHelp(const std::vector<std::string>& arguments, const char* help) {
  const bool asked = std::any_of(arguments.begin(), arguments.end(), [](const std::string& text) {
    return text == "--help" || text == "-h";
  });
  if (asked) {
    std::fputs(help, stdout);
  }
  return asked;
}

int RunDtrain(const Arguments& arguments, const Environment& environment) {
  Arguments rest = arguments;
  if (rest.size() >= 2 && rest[0] == "help") {  // `dtrain help launch`.
    rest = {rest[1], "--help"};
  }
  if (rest.empty() || rest[0] == "--help" || rest[0] == "-h" || rest[0] == "help") {
    std::fputs(Help().c_str(), rest.empty() ? stderr : stdout);
    return rest.empty() ? kExitUsage : kExitOk;
  }
  if (rest[0] == "--version" || rest[0] == "version") {
    std::printf("dtrain %s%s%s%s\n", kVersion, kCommit[0] != '\0' ? " (" : "", kCommit,
                kCommit[0] != '\0' ? ")" : "");
    return kExitOk;
  }
  for (const Subcommand& command : Subcommands()) {
    if (rest[0] == command.name) {
      return command.run(Arguments(rest.begin() + 1, rest.end()), environment);
    }
  }
  if (absl::StartsWith(rest[0], "-")) {
    std::fprintf(stderr, "dtrain: unknown flag %s; dtrain --help lists the commands\n",
                 rest[0].c_str());
    return kExitUsage;
  }
  return RunSibling(rest);
}

}  // namespace dtrain::launcher
