// The subcommands of `dtrain`. Each takes the arguments after its name and returns the exit code.
#pragma once

#include <string>
#include <vector>

#include "base/job_env.h"

namespace dtrain::launcher {

// Dispatches: an own subcommand, else the program dtrain-NAME beside this one (as git does), else
// an error that names the nearest and lists all.
int RunDtrain(const std::vector<std::string>& arguments, const Environment& environment);

// `dtrain env`: who the resolver says this process is, and from which variables.
int EnvCommand(const std::vector<std::string>& arguments, const Environment& environment);
// `dtrain exit-codes`: the table.
int ExitCodesCommand(const std::vector<std::string>& arguments);
// `dtrain logs`: shows or follows the logs of a run directory.
int LogsCommand(const std::vector<std::string>& arguments);
// `dtrain trace merge`: one timeline of all ranks' flight records.
int TraceCommand(const std::vector<std::string>& arguments);

// `dtrain train`: makes a corpus where there is none and trains the default GPT on 2 ranks.
int TrainCommand(const std::vector<std::string>& arguments, const Environment& environment);

}  // namespace dtrain::launcher
