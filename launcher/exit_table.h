// The one table of exit codes: `dtrain exit-codes`, the failure report and restart decisions read
// it; docs/FAILURES.md shows it. Constants.
#pragma once

#include <array>

namespace dtrain::launcher {

enum class Restart { kNever, kOnce, kYes, kRequeue };

struct ExitRow {
  int code;
  const char* meaning;
  Restart restart;
};

inline constexpr std::array<ExitRow, 7> kExitTable = {{
    {0, "done", Restart::kNever},
    {64, "wrong usage, configuration or data, or an exception of the user's module",
     Restart::kNever},
    {70, "a bug of dtrain", Restart::kOnce},
    {75, "temporary: node, network or storage lost, or SIGTERM without a committed save",
     Restart::kYes},
    {93, "no progress: three failures in a row without a new durable step", Restart::kNever},
    {130, "stopped by the user", Restart::kNever},
    {143, "stopped by SIGTERM", Restart::kRequeue},
}};

// "no", "once", ... as the table prints it.
constexpr const char* RestartText(Restart restart) {
  switch (restart) {
    case Restart::kNever:
      return "never";
    case Restart::kOnce:
      return "once";
    case Restart::kYes:
      return "yes";
    case Restart::kRequeue:
      return "requeue";
  }
  return "?";
}

}  // namespace dtrain::launcher
