// The job as this rank sees it: who am I, what is configured, who are the others.
//
// One per process, made by dtrain::Main. Accessors are thread-safe; all ranks call collectives in
// the same order.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
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
  std::string program;                 // argv[0].
  std::string config_file;             // "" : all defaults and --set.
  std::vector<std::string> overrides;  // "KEY=VALUE" of each --set, in order.
  std::string run_dir;                 // "" : DTRAIN_RUN_DIR, else runs/PROGRAM.
  bool fresh = false;                  // Move an existing run aside and start at step 0.
  // Keys whose values may differ from those of the run that is there.
  std::vector<std::string> accept_changes = {};
};

// How AllReduce joins the ranks' values.
enum class Reduction { kSum, kMean, kMin, kMax };

// This process as a rank of the job. Made by dtrain::Main, which hands it to the program.
class Job {
 public:
  // Collective over the ranks that the launcher started: resolves the environment, reads the
  // config, meets the others, prepares the run directory. Seeds LibTorch's default generators with
  // `seed`, alike on all ranks. Blocks until all ranks came (comm.timeout_s).
  static absl::StatusOr<std::unique_ptr<Job>> Create(const JobOptions& options);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  int rank() const;              // This rank's number, from 0 to world_size() - 1.
  int world_size() const;        // Ranks of the job, on all nodes.
  int local_rank() const;        // This rank's number among those of its node, from 0.
  const Config& config() const;  // The configuration, the same on all ranks.
  // Records of this rank.
  Metrics& metrics();
  // "runs/gpt": config.json, run.json, metrics/, checkpoints/ ... (docs/ARCHITECTURE.md).
  const std::string& run_dir() const;
  // The run's name in records; it stays when the run is resumed.
  const std::string& run_id() const;
  // Restarts of this run so far, as the launcher counts them.
  int attempt() const;
  // The device on which the model trains and batches belong: the CPU, or a GPU of this process.
  at::Device device() const;

  // Collectives on tensors of the program's own, for numbers and small tensors: they block, and a
  // GPU's tensor goes through host memory. In place; any strides; every rank gives the same shape
  // and type, else InvalidArgument on all ranks says which differ. All ranks call them in the same
  // order, between the engine's calls and not inside a loss function. The bits are the same on
  // every rank.
  // fp64, fp32, bf16, fp16, int64 or int32; kMean: floating types only, summed in fp32 or better.
  absl::Status AllReduce(const at::Tensor& tensor, Reduction reduction = Reduction::kSum);
  // Every rank ends with the values of rank `root`. Any type.
  absl::Status Broadcast(const at::Tensor& tensor, int root = 0);
  // Returns once all ranks have come.
  absl::Status Barrier();

  // For a configuration with train_epochs, which becomes train_steps: an epoch of the program's
  // data takes that many steps, such as DataLoader::steps_per_epoch(); no whole number where a step
  // goes on with the next epoch. The whole run is rounded up, not each epoch. Call it before
  // Engine::Create and alike on all ranks (collective); without train_epochs it does nothing. A
  // TokenLoader of Split::kTrain does it by itself. Between the call and its return no other thread
  // reads config(). InvalidArgument: the number is not above 0, or differs between ranks.
  // FailedPrecondition: another number is in force.
  absl::Status SetStepsPerEpoch(double steps);

  // Asks for an end of training: the ranks agree on it at the end of the next step, or in the next
  // evaluation, and the MaybeSave behind it saves that step and ends the program with exit code 0
  // and a line that says `reason`. One rank's call is enough. A loop that looks at stop_agreed()
  // can leave before MaybeSave and go on with its end (Finish, an export).
  void Stop(const std::string& reason);

  // Tells the node's agent what this rank does: "data", "forward", ... (never blocks).
  void Beat(const char* phase, int64_t step);
  // The value of stop_signal() where the program has called Stop.
  static constexpr int kProgramStop = 1000;
  // SIGTERM or SIGINT, which this rank has received or all ranks have agreed on; kProgramStop; or 0
  // where nothing stops the run. SIGXCPU, which a limit of CPU time sends, counts as SIGTERM once
  // the ranks have agreed on it.
  int stop_signal() const;
  // Set by the engine: every rank agreed, at the end of a step or between two micro-batches, to
  // stop because of `signal`.
  void AgreeToStop(int signal);
  bool stop_agreed() const;  // Whether AgreeToStop was called: the loop may end.

  // For dtrain itself and its tests, by headers that are not installed: the group of all ranks, for
  // host memory (comm/group.h).
  comm::Group& group();
  // The same: a job from parts (runtime/job/job_state.h).
  struct State;
  // Makes a job of parts that a test or a tool has made.
  static std::unique_ptr<Job> FromState(std::unique_ptr<State> state);
  // The parts of this job.
  State& state() { return *state_; }

 private:
  explicit Job(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace dtrain
