// The stream of facts of a run: JSON lines in RUN_DIR/metrics/rank-R.jsonl, and the progress line.
//
// Thread-safe. Log never blocks: lines go through a bounded queue to a writer thread; when the disk
// is slower than the steps, lines are dropped and counted ("metrics/dropped"). Rank 0 writes
// everything, the others only timings and events.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/json.h"
#include "dtrain/late.h"

namespace dtrain {

// Bytes on this rank at the end of a step.
struct MemoryReport {
  int64_t weights = 0;          // Values, or this rank's share of them; frozen ones too.
  int64_t live_weights = 0;     // Stage 3: memory for gathered ones.
  int64_t gradients = 0;        // With the buckets that they travel in.
  int64_t optimizer = 0;        // Masters and the optimizer's states.
  int64_t activations = 0;      // Kept by forward for backward: the most of any micro-batch.
  int64_t far_activations = 0;  // At most in the step; in a file or a second host buffer.
  // The process; shared memory of peers that it touched and the host's huge pages that it maps
  // included.
  int64_t resident = 0;
};

// The result of one Engine::Step. Times are this rank's, in seconds. On a GPU the call returns
// before the device has done the step: the Late numbers wait when they are read, and the times are
// the host's until Settled.
struct StepReport {
  int64_t step = 0;              // Steps finished, this one included.
  Late<double> loss = 0.0;       // Mean over the global batch.
  Late<double> grad_norm = 0.0;  // Global L2 norm before clipping.
  double learning_rate = 0;      // Used by this step.
  int64_t tokens = 0;            // Samples of the global batch; for language models, tokens.
  std::string unit;              // The name of `tokens`: "tokens", "images"; "": samples.
  double loss_scale = 1;         // fp16: the loss was multiplied with it before backward.
  // The gradient was not finite, or no sample counted (then `loss` is NaN): nothing was updated.
  Late<bool> skipped = false;
  // A stop signal has ended the step between two micro-batches (EngineOptions::may_leave_step):
  // there was no step. `step` is the one before and `loss` NaN; Metrics::Log writes nothing.
  bool stopped = false;
  double seconds = 0;            // Whole step.
  double data_s = 0;             // Waiting for batches.
  double forward_s = 0;          // All micro-batches.
  double backward_s = 0;         // All micro-batches.
  double exposed_comm_s = 0;     // Waiting for reductions that backward did not hide.
  double update_s = 0;           // The optimizer's update.
  double recompute_s = 0;        // In backward, running segments again (<dtrain/recompute.h>).
  double activation_wait_s = 0;  // In backward, waiting for tensors that they kept in a far tier.
  double gemm_flops_per_s = 0;  // Measured GEMM rate of this rank in this run; 0: not measured yet.
  double peak_flops_per_s = 0;  // Dense, by the GPU's datasheet; 0: a CPU, or unknown.
  MemoryReport memory;          // This rank's memory at the step's end.
  double model_flops = 0;       // Strict model FLOPs of this rank's share of the step; 0: unknown.
  std::shared_ptr<LateNumbers> late;  // Numbers that a device still computes; null on the host.

  // Whether nothing is computed any more: reading a number does not wait.
  bool settled() const { return late == nullptr || late->ready(); }
  // Waits for the device, and gives the report with the numbers and times that it measured.
  StepReport Settled() const;
};

// The "kind" of a record that is neither a step nor an evaluation.
enum class EventKind { kEvent, kCheckpoint, kConfig };

// Where and as whom a rank writes its records.
struct MetricsOptions {
  std::string directory;         // RUN_DIR/metrics.
  std::string run_id;            // "run" of each record.
  std::string node;              // Name of this rank's node.
  int attempt = 0;               // Restarts so far.
  int rank = 0;                  // This rank's number.
  int64_t samples_per_step = 0;  // Samples of a global batch.
  int64_t total_steps = 0;       // Steps of the run; 0: not known.
  // Steps between two progress lines; every step is recorded.
  int64_t interval = 1;
  // Columns of the progress line, as metrics.console has them; empty: those of its default.
  std::vector<std::string> columns = {};
  bool print_progress = false;  // This rank prints the progress line; false: its agent does.
  // The run directory, when this rank is to write TensorBoard files into it; else "".
  std::string tensorboard_run_dir;
  // Collective: what each rank gives, in rank order. Null: there is one rank.
  std::function<absl::StatusOr<std::vector<std::string>>(const std::string& mine)> gather = {};
};

// The writer of a rank's records and, on rank 0, of the progress line.
class Metrics {
 public:
  // Opens the file and starts its writer. An error names the file that cannot be made.
  static absl::StatusOr<std::unique_ptr<Metrics>> Open(const MetricsOptions& options);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // One step: names as in docs/METRICS.md (train/loss, perf/tokens_per_s, time/...). A report whose
  // numbers a device still computes is written when they are there, with the time of this call.
  void Log(const StepReport& report);
  // One value of the program's own at the current step, e.g. "eval/loss" or "own/accuracy". Rank 0
  // only. It is recorded and exported as dtrain's own are, and stands in the progress line where
  // metrics.console names it: in its step's line if it is logged before the step's report.
  void Log(absl::string_view name, double value);
  // Collective: the mean of `value` over the ranks, where each counts with its weight (the samples
  // behind it), is logged by rank 0 as Log does, and given to all. The bits are the same on every
  // rank. NaN where the weights sum to 0. InvalidArgument on all ranks: they log different names,
  // or a weight is negative or not finite.
  absl::StatusOr<double> LogMean(absl::string_view name, double value, double weight = 1);
  // The values of the program's own that were logged at the current step, by name; those that are
  // no numbers are left out. Other ranks than rank 0 have none.
  Json ValuesAtStep() const;
  // A stop signal has ended an evaluation before it had a result: values named eval/ are not
  // recorded from here on. The engine says so.
  void EndEvaluations();
  // The current step from here on. The engine says so after each step, a restore after it.
  void SetStep(int64_t step);
  // The steps of the run, which Open may not have known. Job says so (SetStepsPerEpoch).
  void SetTotalSteps(int64_t steps);
  // Something that happened, with details (an object). All ranks.
  void LogEvent(EventKind kind, const Json& details);
  // The same, of an earlier step than the current one: a save that ended only now.
  void LogEvent(EventKind kind, int64_t step, const Json& details);
  // Writes out what is queued, within a bounded time, after waiting for numbers of a device.
  void Flush();
  // A line for people that is no record: through stdout, not mixed into the progress line.
  void Print(absl::string_view text);
  // Ends the progress line: it stays with the last step whose numbers are there, and what is
  // printed next comes below it. Does not wait for a device.
  void LeaveProgress();

 private:
  struct State;
  explicit Metrics(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace dtrain
