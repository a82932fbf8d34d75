// The command line of `dtrain launch`: torchrun's flags (with - or _), their PET_* defaults, and a
// few of DeepSpeed's spellings. Pure: arguments and environment in, options or a message out.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/job_env.h"
#include "launcher/cluster/place.h"
#include "launcher/hosts/host_flags.h"

namespace dtrain::launcher {

// The outputs of ranks that a flag like --tee names.
struct StreamChoice {
  int all = 0;                // 0 none, 1 out, 2 err, 3 both.
  std::vector<int> by_local;  // Overrides by local rank; -1: not given.
  int For(int local_rank) const {
    const auto at = static_cast<size_t>(local_rank);
    return at < by_local.size() && by_local[at] >= 0 ? by_local[at] : all;
  }
};

struct LaunchOptions {
  std::string program;
  std::vector<std::string> arguments;  // The program's arguments, unchanged.
  std::optional<NodePlace> place;      // By Slurm's or Kubernetes' variables.
  int nodes = 1;                       // With MIN:MAX, MAX.
  int nodes_min = 1;                   // The same as `nodes`, but for a job that grows and shrinks.
  // Number of this node. In a job that grows and shrinks it may be above `nodes`.
  int node_rank = 0;
  std::string host_alias;            // This host's name in the hostfile; "": no hostfile.
  std::string ranks_per_node = "1";  // auto, cpu, gpu or a number.
  bool ranks_by_gpus = false;  // Inside Slurm, where no flag says: one for each GPU, otherwise 1.
  std::string rendezvous;      // host:port of node 0's coordinator; "" on one node.
  std::string rendezvous_id;
  absl::Duration join_timeout = absl::Minutes(5);
  absl::Duration last_call = absl::Seconds(30);  // How long MIN nodes wait for more.
  std::string token_file;
  std::string local_address;
  std::string run_dir;
  std::string log_dir;
  int restarts_max = 0;
  std::string role = "default";
  std::vector<int> signals;
  StreamChoice tee;               // Outputs shown besides rank 0's.
  std::vector<int> local_filter;  // Only these local ranks are shown; empty: all that --tee names.
  bool bind_cores = true;
  std::string network_profile;  // "": no variables are set for the network.
  bool tensorboard = true;
  bool reuse = true;     // Processes of ranks that lost another one get the next attempt.
  bool reserve = false;  // Each node keeps a process ready for the place of a lost rank.
  bool quiet = false;
  absl::Duration stop_grace = absl::Minutes(5);
  absl::Duration exit_barrier = absl::Minutes(5);
  HostOptions hosts;  // If it names a hostfile, the agents of its hosts do the rest.
};

struct ParsedLaunch {
  LaunchOptions options;
  std::string help;                // If not empty, print it and end with 0.
  std::vector<std::string> notes;  // Lines for the user about flags that have no effect.
};

// `arguments` are those after "launch". Errors (InvalidArgument) name the flag, the value and what
// is allowed, or the known flag nearest to an unknown one.
absl::StatusOr<ParsedLaunch> ParseLaunch(const std::vector<std::string>& arguments,
                                         const Environment& environment);

// Number of ranks from --nproc-per-node on a machine with `cpus` and `gpus`.
absl::StatusOr<int> RanksOnNode(const std::string& text, int cpus, int gpus);

// Whether the local ranks that flags name exist on a node of `ranks` ranks.
absl::Status CheckLocalRanks(const LaunchOptions& options, int ranks);

// "3" or "0:1,1:2" as torchrun's --tee and --redirects take it.
absl::StatusOr<StreamChoice> ParseStreams(const std::string& flag, const std::string& text);

// "1.5": seconds, 0 or more.
absl::StatusOr<absl::Duration> ParseSeconds(const char* flag, const std::string& text);

}  // namespace dtrain::launcher
