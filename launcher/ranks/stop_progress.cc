#include "launcher/ranks/stop_progress.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace dtrain::launcher {
StopProgress::StopProgress(const std::vector<RankSlot>& slots) {
  for (const RankSlot& slot : slots) {
    stages_[slot.rank] = Stage::kTraining;
  }
}

void StopProgress::Begin(int64_t now_nanos, absl::Duration budget) {
  if (!begin_nanos_.has_value()) {
    begin_nanos_ = now_nanos;
    budget_ = budget;
  }
}

std::optional<std::string> StopProgress::Take(const AgentMessage& message, int64_t now_nanos) {
  if (message.kind != AgentMessage::Kind::kStopping) {
    return std::nullopt;
  }
  step_ = message.step;
  return Reach(message.rank,
               message.phase == AgentMessage::kStepSaved ? Stage::kStepSaved : Stage::kStepFinished,
               now_nanos);
}

std::optional<std::string> StopProgress::Ended(int rank, int64_t now_nanos) {
  return Reach(rank, Stage::kEnded, now_nanos);
}

std::optional<std::string> StopProgress::Reach(int rank, Stage stage, int64_t now_nanos) {
  const auto found = stages_.find(rank);
  if (found == stages_.end()) {
    return std::nullopt;
  }
  found->second = std::max(found->second, stage);
  const Stage all =
      std::min_element(stages_.begin(), stages_.end(), [](const auto& a, const auto& b) {
        return a.second < b.second;
      })->second;
  if (!begin_nanos_.has_value() || all <= said_) {
    return std::nullopt;
  }
  said_ = all;
  // What is said to be left is never more than there is.
  constexpr absl::Duration kDigit = absl::Milliseconds(100);
  const absl::Duration taken = absl::Ceil(absl::Nanoseconds(now_nanos - *begin_nanos_), kDigit);
  const absl::Duration left = std::max(absl::ZeroDuration(), absl::Floor(budget_ - taken, kDigit));
  const std::string after = absl::FormatDuration(taken);
  const std::string rest =
      absl::StrFormat("%s of %s", absl::FormatDuration(left), absl::FormatDuration(budget_));
  switch (all) {
    case Stage::kStepFinished:
      return absl::StrFormat("step %d is finished, %s after the signal; %s are left to save it",
                             step_, after, rest);
    case Stage::kStepSaved:
      return absl::StrFormat(
          "step %d is saved, %s after the signal; %s are left to close connections and to end",
          step_, after, rest);
    case Stage::kEnded:
      return absl::StrFormat(
          "the ranks of this node have stopped, %s after the signal; %s were left", after, rest);
    case Stage::kTraining:
      break;
  }
  return std::nullopt;
}

}  // namespace dtrain::launcher
