#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/system/own_program.h"
#include "base/text/nearest.h"
#include "base/text/text.h"
#include "base/version.h"
#include "launcher/commands/catalog.h"
#include "launcher/commands/commands.h"
#include "launcher/hosts/node_agent.h"
#include "launcher/launch.h"
#include "launcher/nodes/coordinator_process.h"
#include "launcher/nodes/measure_latency.h"
#include "launcher/ranks/spawn.h"
#include "launcher/topology/commands.h"

namespace dtrain::launcher {
namespace {

using Arguments = std::vector<std::string>;

struct Subcommand {
  const char* name;  // Name in the catalog, which has the summary of all that are for users.
  std::function<int(const Arguments&, const Environment&)> run;
};

const std::vector<Subcommand>& Subcommands() {
  static const std::vector<Subcommand> all = {
      {"train", TrainCommand},
      {"finetune", FinetuneCommand},
      {"launch", LaunchCommand},
      {"node-agent", NodeAgentCommand},
      {"coordinator", [](const Arguments&, const Environment&) { return CoordinatorCommand(); }},
      {"completion", [](const Arguments& a, const Environment&) { return CompletionCommand(a); }},
      {"complete", CompleteCommand},
      {"man-pages", ManPagesCommand},
      {"logs", LogsCommand},
      {"trace", [](const Arguments& a, const Environment&) { return TraceCommand(a); }},
      {"ps", PsCommand},
      {"status", StatusCommand},
      {"stop", StopCommand},
      {"drain", DrainCommand},
      {"topo",
       [](const Arguments& a, const Environment& e) { return TopoMain(a, e, MeasureAsRank); }},
      {"doctor", DoctorMain},
      {"env", EnvCommand},
      {"exit-codes", [](const Arguments& a, const Environment&) { return ExitCodesCommand(a); }},
  };
  return all;
}

// Ends a command for which there is no program: `dtrain bench`, `dtrain bench --help`, `dtrain
// bench comn`.
int EndOfGroup(const std::string& group, const Arguments& arguments,
               const std::vector<CommandEntry>& commands) {
  const std::string& next = arguments.size() < 2 ? group : arguments[1];
  if (arguments.size() < 2 || next == "--help" || next == "-h") {
    std::fputs(GroupText(group, commands).c_str(), arguments.size() < 2 ? stderr : stdout);
    return arguments.size() < 2 ? kExitUsage : kExitOk;
  }
  std::fprintf(stderr, "dtrain: %s\n",
               Printable(UnknownCommand(group + " ", next, MembersOf(group, commands))).c_str());
  return kExitUsage;
}

// Replaces this process by dtrain-NAME, or dtrain-NAME-NEXT (`dtrain bench comm`); returns only
// when that is not possible.
int RunSibling(const Arguments& arguments) {
  std::string path = absl::StrCat(OwnFolder(), "/dtrain-", arguments[0]);
  ptrdiff_t first = 1;
  if (arguments.size() > 1 && access(absl::StrCat(path, "-", arguments[1]).c_str(), X_OK) == 0) {
    absl::StrAppend(&path, "-", arguments[1]);
    first = 2;
  }
  Arguments words = {path};
  words.insert(words.end(), arguments.begin() + first, arguments.end());
  execv(path.c_str(), ExecPointers(words).data());
  if (errno != ENOENT) {
    const int error = errno;
    std::fprintf(stderr, "dtrain: cannot execute %s: %s\n", Printable(path).c_str(),
                 std::strerror(error));
    return kExitUsage;
  }
  const std::vector<CommandEntry> commands = AllCommands(SiblingPrograms());
  if (!MembersOf(arguments[0], commands).empty()) {
    return EndOfGroup(arguments[0], arguments, commands);
  }
  std::fprintf(stderr, "dtrain: %s\n",
               Printable(UnknownCommand("", arguments[0], FirstWords(commands))).c_str());
  return kExitUsage;
}

}  // namespace

int RunDtrain(const Arguments& arguments, const Environment& environment) {
  Arguments rest = arguments;
  if (rest.size() >= 2 && rest[0] == "help") {  // `dtrain help bench comm`.
    rest.erase(rest.begin());
    rest.emplace_back("--help");
  }
  if (rest.empty() || rest[0] == "--help" || rest[0] == "-h" || rest[0] == "help") {
    std::fputs(OverviewText(SiblingPrograms()).c_str(), rest.empty() ? stderr : stdout);
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
    std::fprintf(stderr, "dtrain: %s; see dtrain --help\n",
                 Printable(UnknownOption(rest[0], {"--help", "--version"})).c_str());
    return kExitUsage;
  }
  return RunSibling(rest);
}

}  // namespace dtrain::launcher
