#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/console/command_line.h"
#include "base/status.h"
#include "launcher/commands/commands.h"
#include "launcher/exit_table.h"

namespace dtrain::launcher {
int ExitCodesCommand(const std::vector<std::string>& arguments) {
  CLI::App app(
      "Lists the exit codes of ranks and jobs: what they mean, and whether it helps to start the "
      "job again.",
      "dtrain exit-codes");
  app.footer(
      "Example:\n"
      "  dtrain exit-codes\n"
      "\n"
      "Line for slurm.conf, so that Slurm starts such jobs again:\n"
      "  RequeueExit=75,143");
  if (const auto code = ParseCommandLine(app, arguments)) {
    return *code;
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
