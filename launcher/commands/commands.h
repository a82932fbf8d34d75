// The subcommands of `dtrain`. Each takes the arguments after its name and returns the exit code.
// Called by the main thread.
#pragma once

#include <string>
#include <vector>

#include "base/job_env.h"

namespace dtrain::launcher {

// Runs a subcommand of this program, or else the program dtrain-NAME beside it (as git does).
// Otherwise the error names the nearest command and lists all.
int RunDtrain(const std::vector<std::string>& arguments, const Environment& environment);

// `dtrain ps`, `dtrain status`, `dtrain stop` and `dtrain drain`: this user's running jobs that
// have a node on this host (launcher/jobs/).
int PsCommand(const std::vector<std::string>& arguments, const Environment& environment);
int StatusCommand(const std::vector<std::string>& arguments, const Environment& environment);
int StopCommand(const std::vector<std::string>& arguments, const Environment& environment);
int DrainCommand(const std::vector<std::string>& arguments, const Environment& environment);

// `dtrain env`: prints the rank, sizes and addresses that this process has by its environment, and
// the variables that say so.
int EnvCommand(const std::vector<std::string>& arguments, const Environment& environment);
// The names after "dtrain-" of the programs beside this one.
std::vector<std::string> SiblingPrograms();

// `dtrain completion`: prints a shell's script.
int CompletionCommand(const std::vector<std::string>& arguments);
// `dtrain complete -- WORD...`, which the script asks: prints what the last word may be.
int CompleteCommand(const std::vector<std::string>& arguments, const Environment& environment);
// `dtrain man-pages DIR`, of which packages are made: writes a manual page for each command.
int ManPagesCommand(const std::vector<std::string>& arguments, const Environment& environment);
// `dtrain exit-codes`: prints the table.
int ExitCodesCommand(const std::vector<std::string>& arguments);
// `dtrain logs`: shows or follows the logs of a run directory.
int LogsCommand(const std::vector<std::string>& arguments, const Environment& environment);
// `dtrain trace merge`: merges all ranks' flight records into one timeline.
int TraceCommand(const std::vector<std::string>& arguments);

// `dtrain finetune`: from a model folder and JSONL to a tuned model folder; with a configuration,
// the program dtrain-finetune.
int FinetuneCommand(const std::vector<std::string>& arguments, const Environment& environment);
// `dtrain train`: makes a corpus if there is none and trains the default GPT on 2 ranks.
int TrainCommand(const std::vector<std::string>& arguments, const Environment& environment);

}  // namespace dtrain::launcher
