// Starts `dtrain launch` once on each node of a Slurm allocation, as one step of it (srun), and
// waits for the step's end. Used by the main thread, before it starts another.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/job_env.h"
#include "launcher/options.h"

namespace dtrain::launcher {

struct StepRequest {
  const LaunchOptions& options;  // REQUIRES: place->starts_step.
  const std::vector<std::string>&
      arguments;  // Those after "launch", for the launchers of the step.
  const Environment& environment;
};

// The command of the step: `srun` with one task a node that runs `dtrain launch`. Pure.
std::vector<std::string> StepCommand(const StepRequest& request, const std::string& srun,
                                     const std::string& dtrain);

// `environment` without the variables by which srun would give each task the share of one rank,
// such as one GPU: here a task is the launcher of a whole node. Pure.
Environment StepEnvironment(const Environment& environment);

// The text of --dry-run outside a step: the step's command, and what it gets. Pure.
std::string DescribeStep(const StepRequest& request, const std::string& srun,
                         const std::string& dtrain);

// The same text for this machine. Errors: the program or srun is not there.
absl::StatusOr<std::string> PlanSlurmStep(const StepRequest& request);

// Blocks until the step has ended and gives its exit code: srun's, which is the highest of all
// launchers', and 130 after a Ctrl-C that let the ranks save. A stop signal reaches all launchers;
// a second one ends the step at once. Errors: as PlanSlurmStep.
//
// The job token goes to the launchers through srun's standard input. Unlike a file in the run
// directory, it is never on a disk, needs no shared folder and leaves nothing behind.
absl::StatusOr<int> RunSlurmStep(const StepRequest& request);

}  // namespace dtrain::launcher
