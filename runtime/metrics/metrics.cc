#include "dtrain/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/console/run_console.h"
#include "base/console/terminal.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "base/tensorboard/export.h"
#include "base/threads/worker.h"
#include "runtime/metrics/step_record.h"
#include "runtime/plan/metrics_line.h"

namespace dtrain {
namespace {

constexpr size_t kQueuedLinesMax = 4096;
constexpr int64_t kCurrentStep = -1;  // Stands for the step of an event.
constexpr double kSmoothing = 0.9;  // For the step time from which the remaining time is estimated.

plan::MetricsKind RecordKind(EventKind kind) {
  switch (kind) {
    case EventKind::kCheckpoint:
      return plan::MetricsKind::kCheckpoint;
    case EventKind::kConfig:
      return plan::MetricsKind::kConfig;
    case EventKind::kEvent:
      break;
  }
  return plan::MetricsKind::kEvent;
}

// The console of a rank that no agent shows.
std::unique_ptr<RunConsole> OwnConsole(const MetricsOptions& options) {
  RunConsoleOptions console;
  console.console.terminal = IsTerminal(STDOUT_FILENO);
  console.console.own_log = true;
  console.console.write_timeout = absl::InfiniteDuration();  // Nothing else holds the lines.
  console.style.total_steps = options.total_steps;
  if (!options.columns.empty()) {
    console.style.columns = options.columns;
  }
  console.folder = WorkingDirectory();
  console.interval = std::max<int64_t>(1, options.interval);
  return std::make_unique<RunConsole>(console);
}

// A rank's part of a mean, sent as bytes with the name behind it.
struct MeanPart {
  double value = 0;
  double weight = 0;
};

// In rank order, so that every rank gets the same bits.
absl::StatusOr<double> WeightedMean(const std::vector<std::string>& parts) {
  double sum = 0;
  double weights = 0;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    MeanPart part;
    std::memcpy(&part, parts[rank].data(), sizeof(part));
    const std::string name = parts[rank].substr(sizeof(part));
    if (const std::string first = parts[0].substr(sizeof(part)); name != first) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "Metrics::LogMean got \"%s\" on rank 0 and \"%s\" on rank %d; all ranks log the same "
          "names in the same order",
          first, name, rank));
    }
    if (!(part.weight >= 0) || std::isinf(part.weight)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("Metrics::LogMean(\"%s\") got the weight %g on rank %d; allowed: a "
                          "finite number, 0 or more",
                          name, part.weight, rank));
    }
    if (part.weight > 0) {  // A rank without samples has no mean.
      sum += part.value * part.weight;
      weights += part.weight;
    }
  }
  return sum / weights;
}

}  // namespace

struct Metrics::State {
  MetricsOptions options;
  UniqueFd file;
  std::atomic<uint64_t> dropped{0};
  std::mutex mutex;  // Guards what follows.
  double mean_step_s = 0;
  int64_t step = 0;
  bool evaluations_ended = false;
  Json values_at_step = Json::object();  // The program's own, logged at `values_step`.
  int64_t values_step = 0;
  std::unique_ptr<RunConsole> console;  // Null where an agent shows the run, and beside rank 0.
  // Steps whose numbers a device still computes, the oldest first.
  std::deque<std::pair<plan::MetricsRecord, StepReport>> late;
  std::optional<TensorBoardExport> tensorboard;  // Used by the writer's thread alone.
  std::unique_ptr<Worker> writer;                // Last: its closures use the members above.

  plan::MetricsRecord Record(plan::MetricsKind kind) const {
    plan::MetricsRecord record;
    record.unix_seconds = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
    record.run = options.run_id;
    record.attempt = options.attempt;
    record.rank = options.rank;
    record.node = options.node;
    record.kind = kind;
    record.step = step;
    record.samples = step * options.samples_per_step;
    return record;
  }

  void Append(const plan::MetricsRecord& record) {
    const bool queued = writer->Submit(
        [this, json = plan::MetricsJson(record)] {
          const std::string line = DumpJson(json) + "\n";
          if (!WriteFully(file.get(), line.data(), line.size()).ok()) {
            ++dropped;
          }
          if (tensorboard.has_value()) {
            if (const absl::Status status = tensorboard->Add(json); !status.ok()) {
              DT_LOG(Warning) << "no more TensorBoard files are written: " << status.message();
            }
          }
        },
        Deadline::After(absl::ZeroDuration()));
    dropped += queued ? 0 : 1;
  }

  // Writes a step down whose numbers are there.
  void Complete(plan::MetricsRecord record, const StepReport& report) {
    mean_step_s = mean_step_s == 0 ? report.seconds
                                   : kSmoothing * mean_step_s + (1 - kSmoothing) * report.seconds;
    record.metrics = StepMetrics(report, {mean_step_s, options.total_steps}, options.rank == 0);
    if (const uint64_t lines = dropped.load(); lines > 0) {
      record.metrics.emplace_back("metrics/dropped", static_cast<double>(lines));
    }
    Append(record);
    Show(record);
  }

  // Completes late steps before anything that follows them is written: their lines come first.
  void CompleteLate(bool wait) {
    while (!late.empty() && (wait || late.front().second.settled())) {
      Complete(std::move(late.front().first), late.front().second.Settled());
      late.pop_front();
    }
  }

  void Show(const plan::MetricsRecord& record) {
    if (console == nullptr) {
      return;
    }
    std::fflush(stdout);  // The program's own output comes first.
    console->Take(plan::MetricsJson(record));
    console->ShowProgress();
    console->console().Refresh();
  }

  void ShowLine(absl::string_view text) {
    if (console != nullptr) {
      std::fflush(stdout);
      console->console().Out(text);
    } else {
      absl::PrintF("%s\n", text);
      std::fflush(stdout);
    }
  }
};

absl::StatusOr<std::unique_ptr<Metrics>> Metrics::Open(const MetricsOptions& options) {
  auto state = std::make_unique<State>();
  state->options = options;
  DT_RETURN_IF_ERROR(MakeDirectories(options.directory));
  const std::string path = absl::StrCat(options.directory, "/rank-", options.rank, ".jsonl");
  DT_ASSIGN_OR_RETURN(state->file, OpenFile(path, O_WRONLY | O_CREAT | O_APPEND));
  if (!options.tensorboard_run_dir.empty()) {
    state->tensorboard.emplace(options.tensorboard_run_dir);
  }
  if (options.print_progress && options.rank == 0) {
    state->console = OwnConsole(options);
  }
  state->writer = std::make_unique<Worker>(
      WorkerOptions{.name = "dt-metrics", .queue_capacity = kQueuedLinesMax, .low_priority = true});
  return std::unique_ptr<Metrics>(new Metrics(std::move(state)));
}

Metrics::Metrics(std::unique_ptr<State> state) : state_(std::move(state)) {}

Metrics::~Metrics() {
  state_->CompleteLate(/*wait=*/true);
  if (state_->console != nullptr) {
    state_->console->LeaveProgress();
  }
  if (const uint64_t dropped = state_->dropped.load(); dropped > 0) {
    DT_LOG(Warning) << dropped << " metrics lines were dropped: the disk was slower than the steps";
  }
}

void Metrics::Log(const StepReport& report) {
  if (report.stopped) {
    return;
  }
  std::lock_guard lock(state_->mutex);
  state_->step = report.step;
  plan::MetricsRecord record = state_->Record(plan::MetricsKind::kStep);
  state_->CompleteLate(/*wait=*/false);
  if (state_->late.empty() && report.settled()) {
    state_->Complete(std::move(record), report.Settled());
  } else {
    state_->late.emplace_back(std::move(record), report);
  }
}

void Metrics::Log(absl::string_view name, double value) {
  std::lock_guard lock(state_->mutex);
  if (state_->options.rank != 0) {
    return;
  }
  state_->CompleteLate(/*wait=*/false);
  const bool evaluation = absl::string_view(name).substr(0, 5) == "eval/";
  if (evaluation && state_->evaluations_ended) {
    return;
  }
  if (std::exchange(state_->values_step, state_->step) != state_->step) {
    state_->values_at_step = Json::object();
  }
  if (std::isfinite(value)) {
    state_->values_at_step[std::string(name)] = value;
  }
  plan::MetricsRecord record =
      state_->Record(evaluation ? plan::MetricsKind::kEval : plan::MetricsKind::kStep);
  record.metrics = {{std::string(name), value}};
  state_->Append(record);
  state_->Show(record);
}

absl::StatusOr<double> Metrics::LogMean(absl::string_view name, double value, double weight) {
  const auto& gather = state_->options.gather;
  MeanPart mine{value, weight};
  std::string text(reinterpret_cast<const char*>(&mine), sizeof(mine));
  text.append(name.data(), name.size());
  std::vector<std::string> all = {text};
  if (gather != nullptr) {
    DT_ASSIGN_OR_RETURN(all, gather(text));
  }
  DT_ASSIGN_OR_RETURN(const double mean, WeightedMean(all));
  Log(name, mean);
  return mean;
}

Json Metrics::ValuesAtStep() const {
  std::lock_guard lock(state_->mutex);
  return state_->values_step == state_->step ? state_->values_at_step : Json::object();
}

void Metrics::EndEvaluations() {
  std::lock_guard lock(state_->mutex);
  state_->evaluations_ended = true;
}

void Metrics::SetStep(int64_t step) {
  std::lock_guard lock(state_->mutex);
  state_->step = step;
}

void Metrics::SetTotalSteps(int64_t steps) {
  std::lock_guard lock(state_->mutex);
  state_->options.total_steps = steps;
}

void Metrics::LogEvent(EventKind kind, const Json& details) {
  LogEvent(kind, kCurrentStep, details);
}

void Metrics::LogEvent(EventKind kind, int64_t step, const Json& details) {
  std::lock_guard lock(state_->mutex);
  state_->CompleteLate(/*wait=*/false);
  plan::MetricsRecord record = state_->Record(RecordKind(kind));
  if (step != kCurrentStep && record.step > 0) {
    record.samples = record.samples / record.step * step;
    record.step = step;
  }
  record.details = details;
  state_->Append(record);
  state_->Show(record);
}

void Metrics::Print(absl::string_view text) {
  std::lock_guard lock(state_->mutex);
  if (state_->options.rank == 0) {
    state_->ShowLine(text);
  }
}

void Metrics::LeaveProgress() {
  std::lock_guard lock(state_->mutex);
  state_->CompleteLate(/*wait=*/false);
  if (state_->console != nullptr) {
    state_->console->LeaveProgress();
  }
}

void Metrics::Flush() {
  {
    std::lock_guard lock(state_->mutex);
    state_->CompleteLate(/*wait=*/true);
  }
  // Shared with the writer, which may reach it after this call gave up.
  const Deadline deadline = Deadline::After(absl::Seconds(5));
  const auto written = std::make_shared<BoundedQueue<bool>>(1);
  if (state_->writer->Submit([written] { written->TryPush(true); }, deadline)) {
    written->Pop(deadline);
  }
}

}  // namespace dtrain
