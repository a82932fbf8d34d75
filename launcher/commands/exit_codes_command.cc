#include <cstdio>

#include "base/status.h"
#include "launcher/commands/commands.h"
#include "launcher/exit_table.h"

namespace dtrain::launcher {
namespace {
constexpr char kExitCodesHelp[] =
    R"(Usage: dtrain exit-codes
Lists the exit codes of ranks and jobs: what they mean, and whether it helps to
start the job again.

Example: dtrain exit-codes
Line for slurm.conf, so that Slurm starts such jobs again: RequeueExit=75,143
)";
}  // namespace

int ExitCodesCommand(const std::vector<std::string>& arguments) {
  if (AskedForHelp(arguments, kExitCodesHelp)) {
    return kExitOk;
  }
  if (!arguments.empty()) {
    std::fprintf(stderr, "dtrain exit-codes: takes no arguments, got %s\n", arguments[0].c_str());
    return kExitUsage;
  }
  std::printf("%-7s %-13s %s\n", "code", "restart", "meaning");
  for (const ExitRow& row : kExitTable) {
    std::printf("%-7d %-13s %s\n", row.code, RestartText(row.restart), row.meaning);
  }
  std::printf("%-7s %-13s %s\n", "128+n", "by diagnosis", "killed by signal n (137: SIGKILL)");
  std::printf("%-7s %-13s %s\n", "other", "by diagnosis", "the program's own, passed through");
  return kExitOk;
}

}  // namespace dtrain::launcher
