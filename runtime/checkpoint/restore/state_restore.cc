#include "runtime/checkpoint/restore/state_restore.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "runtime/checkpoint/tracked_tensors.h"
#include "runtime/job/job_state.h"

namespace dtrain {

absl::Status StateRestore::AskForEngines(RestoreReads& reads) {
  if (engines_.empty()) {
    return absl::OkStatus();
  }
  const checkpoint::Checkpoint& from = reads.from();
  // Engines of one shape would change places without a sound.
  const Json& saved = from.manifest().state.engine;
  const std::string first = saved.value("name", engines_[0].first);
  if ((engines_.size() > 1 || saved.contains("engines")) && first != engines_[0].first) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s was saved with \"%s\" as the first of several engines, this program "
                        "tracks \"%s\" first: "
                        "track them in the same order",
                        from.DisplayName(), first, engines_[0].first));
  }
  const auto accepts = [this](absl::string_view key) { return job_.state().accepts(key); };
  for (size_t i = 0; i < (HoldsWeightsAlone(from) ? 1 : engines_.size()); ++i) {
    const auto& [name, engine] = engines_[i];
    DT_ASSIGN_OR_RETURN(RestoredValues values,
                        ReadEngine(engine->state(), i == 0 ? "" : name, place_, reads, accepts));
    values_.push_back(std::move(values));
  }
  return absl::OkStatus();
}

absl::Status StateRestore::AskFor(RestoreReads& reads) {
  const checkpoint::Checkpoint& from = reads.from();
  const bool is_import = HoldsWeightsAlone(from);  // All but the weights begins as new.
  if (is_import && filled_) {
    return absl::UnavailableError(
        absl::StrCat(from.DisplayName(),
                     " holds weights alone, and a damaged checkpoint after it has filled "
                     "the optimizer's states: start the run again, and it goes on from this one"));
  }
  filled_ = true;
  DT_RETURN_IF_ERROR(is_import ? absl::OkStatus() : ReadTrackedTensors(tensors_, reads, read_));
  DT_RETURN_IF_ERROR(AskForEngines(reads));
  if (place_.rank == 0) {  // Else nobody reads them, which would take another round of messages.
    reads.OtherFiles();
  }
  return absl::OkStatus();
}

absl::StatusOr<checkpoint::RestoreOutcome> StateRestore::Read(checkpoint::Checkpoint& from,
                                                              checkpoint::Exchange& exchange) {
  values_.clear();
  const absl::Duration timeout = absl::Seconds(job_.config().comm_timeout_seconds());
  RestoreReads reads(from);
  absl::Status status;
  DT_RETURN_IF_ERROR(exchange.Together(
      [&] {
        status = AskFor(reads);
        status.Update(status.ok() ? reads.Run() : absl::OkStatus());
        return absl::OkStatus();
      },
      timeout));
  return checkpoint::AgreeOnRestore(from, status, exchange, timeout);
}

absl::StatusOr<std::string> StateRestore::Apply() {
  std::string note;
  for (size_t i = 0; i < values_.size(); ++i) {
    DT_RETURN_IF_ERROR(ApplyEngine(values_[i], engines_[i].second->state()));
    note += values_[i].note;
  }
  values_.clear();
  return note;
}

}  // namespace dtrain
