// The running jobs of this user on this host: each `dtrain launch` (the agent of a node) has a file
// in one folder while it lives, so that `dtrain ps`, `status` and `stop` find it. The file of an
// agent that was killed is noticed by its process and removed by whoever reads next. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/job_env.h"

namespace dtrain::launcher {

struct JobFacts {
  int pid = 0;                // The agent's.
  int64_t process_start = 0;  // When that process started, in the kernel's ticks since boot.
  std::string run_dir;        // Absolute.
  std::string run_id;
  std::string program;
  std::string socket;        // The agent's, which answers AskAgent.
  std::string control;       // An elastic job's socket, for ControlClient; "": it is not elastic.
  std::string nodes_socket;  // Tells ControlClient of all nodes; "": the job has one.
  std::string coordinator;   // Where the nodes meet, on the host of node 0; "": the job has one.
  int nodes = 1;
  int node_rank = 0;
  int ranks = 0;          // Those on this node.
  double started_at = 0;  // Unix seconds.
};

// $XDG_RUNTIME_DIR/dtrain, or /tmp/dtrain-UID where that variable is unset.
std::string RegistryFolder(const Environment& environment);

// A file of the registry. Removed with its owner.
class JobEntry {
 public:
  // Makes the folder, if need be, for this user alone. PermissionDenied: it is another user's, or
  // others can write to it.
  static absl::StatusOr<JobEntry> Add(const std::string& folder, JobFacts facts);
  JobEntry(JobEntry&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  JobEntry& operator=(JobEntry&& other) noexcept {
    std::swap(path_, other.path_);
    return *this;
  }
  ~JobEntry();

 private:
  explicit JobEntry(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// The jobs whose agents live, the oldest first. Removes the files of others.
absl::StatusOr<std::vector<JobFacts>> RunningJobs(const std::string& folder);

// The one of `jobs` that runs in this directory, however it is written, and of several nodes of it
// the first; null: none does.
const JobFacts* JobIn(const std::string& run_dir, absl::Span<const JobFacts> jobs);

// The start of the process `pid`; 0: there is none.
int64_t ProcessStart(int pid);

}  // namespace dtrain::launcher
