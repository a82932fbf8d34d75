// The main function of a training program.
#pragma once

#include "absl/status/status.h"
#include "dtrain/job.h"

namespace dtrain {

// Parses the command line (--help explains it), creates the Job, runs `train` and gives the
// process's exit code as in docs/FAILURES.md. An exception that leaves `train` is printed and
// gives 64. Messages go to stderr as one line; with an agent, the agent shows them too. `about`:
// what --help says of this program, whole lines.
int Main(int argc, char** argv, absl::Status (*train)(Job&), const char* about = "");

}  // namespace dtrain
