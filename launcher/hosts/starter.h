// `dtrain launch --hostfile`: starts the agents of all hosts with one command, and ends with the
// job's exit code.
//
// One ssh process for each host, at most 64 of them connecting at a time. With more hosts, those
// that are started from here start the others (host_routes.h), and the starter sees all of them as
// if it had. Each agent answers with the version of its dtrain and what it has for the program;
// when all have, node 0's opens the coordinator on a free port, and the others are told where.
// After that the agents need the starter only for stop signals and to show output. If it dies, they
// stop their ranks.
#pragma once

#include "base/job_env.h"
#include "launcher/options.h"

namespace dtrain::launcher {

// Blocks until the job has ended on all hosts. Returns its exit code. REQUIRES: the main thread, no
// other thread; a hostfile in `options`.
int StartOnHosts(const LaunchOptions& options, const Environment& environment);

}  // namespace dtrain::launcher
