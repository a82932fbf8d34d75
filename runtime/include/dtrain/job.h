// The job as this rank sees it: who am I, what is configured, who are the others.
//
// One per process, made by dtrain::Main. Accessors are thread-safe; collectives follow Group's
// rules.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "c10/core/Device.h"
#include "dtrain/config.h"
#include "dtrain/metrics.h"

namespace dtrain {

namespace comm {
class Group;
class Store;
}  // namespace comm
class AgentChannel;
struct JobEnv;

// The options on the command line of a program: PROG CONFIG.json [--set key=value]...
// [--run-dir DIR] [--fresh] [--accept-change KEY]..., or --deepspeed_config FILE.
struct JobOptions {
  std::string program;      // argv[0].
  std::string config_file;  // "" : all defaults and --set.
  std::vector<std::string> overrides;
  std::string run_dir;  // "" : DTRAIN_RUN_DIR, else runs/<program>.
  bool fresh = false;   // Move an existing run aside and start at step 0.
  // Keys whose values may differ from those of the run that is there.
  std::vector<std::string> accept_changes = {};
};

class Job {
 public:
  // Collective over the ranks that the launcher started: resolves the environment, reads the
  // config, meets the others, prepares the run directory. Seeds LibTorch's default generators with
  // `seed`, alike on all ranks. Blocks until all ranks came (comm.timeout_s).
  static absl::StatusOr<std::unique_ptr<Job>> Create(const JobOptions& options);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  int rank() const;
  int world_size() const;
  int local_rank() const;
  const Config& config() const;
  Metrics& metrics();
  // "runs/gpt": config.json, run.json, metrics/, checkpoints/ ... (docs/ARCHITECTURE.md).
  const std::string& run_dir() const;
  const std::string& run_id() const;
  // Restarts of this run so far, as the launcher counts them.
  int attempt() const;
  // The group of all ranks, for host memory.
  comm::Group& group();
  // The device on which the model trains and batches belong: the CPU, or a GPU of this process.
  at::Device device() const;
  // Tells the node's agent what this rank does: "data", "forward", ... (never blocks).
  void Beat(const char* phase, int64_t step);
  // SIGTERM or SIGINT was received by this rank, or agreed on by all; SIGXCPU, which its limit of
  // CPU time sends, is SIGTERM once it is agreed on. 0: none.
  int stop_signal() const;
  // Set by the engine: every rank agreed, at the end of a step or between two micro-batches, to
  // stop because of `signal`.
  void AgreeToStop(int signal);
  bool stop_agreed() const;

  // For dtrain itself and its tests: a job from parts (runtime/job/job_state.h).
  struct State;
  static std::unique_ptr<Job> FromState(std::unique_ptr<State> state);
  State& state() { return *state_; }

 private:
  explicit Job(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace dtrain
