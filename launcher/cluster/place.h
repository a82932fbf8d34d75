// The place of this node in its job, by the variables that Slurm or Kubernetes set: how many nodes
// there are, which of them this one is, and where they meet. Pure functions of a map of variables.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/job_env.h"

namespace dtrain::launcher {

// A number and the variable that gives it.
struct PlaceNumber {
  int value = -1;  // -1: no variable gives it.
  std::string variable;
  std::string refusal;  // If not empty: why it cannot be known, unless a flag gives it.
};

struct NodePlace {
  std::string source;  // "Slurm job 42", "LeaderWorkerSet".
  PlaceNumber nodes;
  PlaceNumber node_rank;
  std::string endpoint;  // host:port of node 0; "" when no variable gives it.
  std::string endpoint_refusal;
  bool is_slurm = false;
  // In an allocation of several nodes and not in a step of it: `dtrain launch` starts such a step.
  bool starts_step = false;
  int gpus = -1;     // GPUs of this node that Slurm gave to the job; -1: Slurm does not count them.
  int restarts = 0;  // How often Slurm has started this job again.
};

// Reads the variables of a Slurm step or allocation, of LeaderWorkerSet, of an Indexed Job (which
// JobSet and Kubeflow's TrainJob make) and of PyTorchJob. Nothing when there are none, and in a
// rank, which has its place from its launcher. InvalidArgument names a variable with a bad value,
// or a step with more tasks than nodes and the line to use.
absl::StatusOr<std::optional<NodePlace>> FindNodePlace(const Environment& environment);

// The values of the flags --nnodes, --node-rank and --rdzv-endpoint; "" where they are left out.
struct NodeFlags {
  struct Flag {
    std::string value;
    bool is_typed = false;  // On the command line, and not in a PET_* variable.
  };
  Flag nodes;
  Flag node_rank;
  Flag endpoint;
};

// Sets what is left out to the values of `place`. A flag on the command line wins over `place`, but
// for Slurm's number of nodes. InvalidArgument names two sources that contradict each other.
absl::Status FillFromPlace(const NodePlace& place, NodeFlags& flags);

// One line on where the values come from: "node 1 of 2 by Slurm job 42; nodes meet at n1:20042".
std::string DescribePlace(const NodePlace& place, int nodes, int node_rank,
                          const std::string& endpoint);

}  // namespace dtrain::launcher
