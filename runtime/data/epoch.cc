#include "runtime/data/epoch.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "base/console/run_console.h"
#include "base/log.h"
#include "base/status.h"
#include "runtime/job/gather_texts.h"
#include "runtime/job/job_state.h"
#include "runtime/job/run_directory.h"

namespace dtrain {
namespace {

// Notes on values that follow from the number of steps could not be given before.
void SayNewWarnings(const Config& before, const Config& now) {
  const auto& said = before.warnings();
  for (const std::string& warning : now.warnings()) {
    if (std::find(said.begin(), said.end(), warning) == said.end()) {
      DT_LOG(Warning) << warning;
    }
  }
}

// Rank 0's part: the records of the run.
absl::Status RecordLength(Job::State& state, const Config& before) {
  const Config& config = *state.config;
  SayNewWarnings(before, config);
  if (state.saved_steps > 0 && state.saved_steps != config.train_steps()) {
    DT_LOG(Info) << absl::StrFormat(
        "train_epochs %g is %d steps now; the run had %d, with another train_epochs, other data or "
        "another train_batch_size",
        config.train_epochs(), config.train_steps(), state.saved_steps);
  }
  // The event tells readers of config.json to read it again.
  DT_RETURN_IF_ERROR(RecordConfiguration(state.run_dir, config));
  state.metrics->LogEvent(
      EventKind::kConfig,
      ProgressSettings(config.train_steps(), config.metrics_interval(), config.metrics_console()));
  return absl::OkStatus();
}

}  // namespace

absl::Status SetEpoch(Job& job, double steps_per_epoch) {
  Job::State& state = job.state();
  const Config before = *state.config;
  if (before.train_epochs() == 0) {
    return absl::OkStatus();
  }
  DT_RETURN_IF_ERROR(CheckSameOnRanks(
      job, absl::StrFormat("%.15g", steps_per_epoch),
      [](const std::string& first, const std::string& other, int rank) {
        return absl::StrFormat(
            "an epoch takes %s steps on rank 0 and %s on rank %d; every rank gives the same number",
            first, other, rank);
      }));
  DT_ASSIGN_OR_RETURN(Config counted, before.WithStepsPerEpoch(steps_per_epoch));
  if (before.train_steps() > 0) {
    return counted.train_steps() == before.train_steps()
               ? absl::OkStatus()
               : absl::FailedPreconditionError(absl::StrFormat(
                     "train_epochs %g is %d steps already, and would be %d with epochs of %g "
                     "steps; one source of data decides how long a run is",
                     before.train_epochs(), before.train_steps(), counted.train_steps(),
                     steps_per_epoch));
  }
  state.config_before_length = before;
  *state.config = std::move(counted);
  state.metrics->SetTotalSteps(state.config->train_steps());
  return AgreeOnError(job, state.env.rank == 0 ? RecordLength(state, before) : absl::OkStatus());
}

absl::Status Job::SetStepsPerEpoch(double steps) {
  if (!(steps > 0) || std::isinf(steps)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("Job::SetStepsPerEpoch got %g; allowed: a number above 0", steps));
  }
  return SetEpoch(*this, steps);
}

absl::Status CheckLengthIsKnown(const Config& config) {
  if (config.train_epochs() == 0 || config.train_steps() > 0) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrFormat(
      "train_epochs %g is set, but not how many steps an epoch takes; before Engine::Create, open "
      "the token files of data.train (TokenLoader::Open), or call "
      "job.SetStepsPerEpoch(data->steps_per_epoch()) for data of your own; or set train_steps",
      config.train_epochs()));
}

}  // namespace dtrain
