// Plans what is started on each host of a hostfile: the command, and the job's message to the
// agent. Blocks on files only; used by the main thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/job_env.h"
#include "launcher/hosts/host_tree.h"
#include "launcher/hosts/node_messages.h"
#include "launcher/options.h"

namespace dtrain::launcher {

struct HostPlan {
  std::string host;
  bool is_local = false;  // This host: no ssh.
  std::string switches;   // Its switches from the root down; "": not known.
  TreePlace place;        // By node ranks.
  std::vector<std::string> command;
  JobMessage job;  // Without the token.
};

// By node rank. Errors are those of the hostfile, the filters and --export, of a local rank that is
// on no host, and of a program that can be on no host.
absl::StatusOr<std::vector<HostPlan>> PlanHosts(const LaunchOptions& options,
                                                const Environment& environment);

// The text of --dry-run: for each host the exact command, and what its agent would be sent. Pure.
std::string DescribePlans(const std::vector<HostPlan>& plans);

}  // namespace dtrain::launcher
