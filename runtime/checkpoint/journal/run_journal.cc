#include "runtime/checkpoint/journal/run_journal.h"

#include <utility>

#include "runtime/checkpoint/journal/journal_thread.h"

namespace dtrain {

absl::Status RunJournal::Check() const {
  return is_wanted_ ? StepJournal::Check(job_, engines_[0].second->state(), engines_.size())
                    : absl::OkStatus();
}

absl::StatusOr<Replayed> RunJournal::Replay(const ReplayFrom& from,
                                            absl::Span<const NamedTensor> tensors,
                                            const RankPlace& place) const {
  return engines_.size() > 1  // No journal holds the steps of several.
             ? Replayed()
             : ReplayJournal(from, job_.config(), tensors, place, *engines_[0].second);
}

void RunJournal::Begin(checkpoint::Storage& storage, const checkpoint::EpochRecord& epoch,
                       const RankPlace& place, const std::vector<std::string>& buffers) {
  if (is_wanted_) {
    journal_ = std::make_shared<StepJournal>(job_, storage, engines_[0].second->state(), place);
    journal_->Begin(epoch, buffers);
  } else {
    left_in_ = &storage;
  }
}

void RunJournal::EndStep(const TrackedStates& states, absl::Span<const NamedTensor> tensors) {
  if (journal_ != nullptr) {
    journal_->EndStep({states.Save(), tensors});
  }
}

void RunJournal::Rotate() {
  if (journal_ != nullptr) {
    journal_->Rotate();
  }
}

void RunJournal::RemoveBefore(const checkpoint::StepId& id) {
  if (job_.rank() != 0) {
    return;
  }
  if (journal_ != nullptr) {
    journal_->RemoveBefore(id);
  } else if (checkpoint::Storage* const storage = std::exchange(left_in_, nullptr)) {
    RemoveJournalBefore(*storage, id);
  }
}

void RunJournal::Finish() {
  if (journal_ != nullptr) {
    journal_->Finish();
  }
}

}  // namespace dtrain
