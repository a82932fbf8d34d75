#include "checkpoint/restore/lineage.h"

#include <algorithm>
#include <functional>
#include <iterator>

#include "base/log.h"
#include "base/status.h"

namespace dtrain::checkpoint {

std::vector<LineageSegment> Lineage(const EpochMap& epochs) {
  std::vector<LineageSegment> lineage;
  if (epochs.empty()) {
    return lineage;
  }
  auto at = std::prev(epochs.end());
  lineage.push_back({at->first, kStepMax});
  while (at != epochs.end()) {
    if (!at->second) {
      if (at == epochs.begin()) {
        break;
      }
      at = std::prev(at);
      lineage.push_back({at->first, kStepMax});
      continue;
    }
    const std::optional<StepId>& from = at->second->resumed_from;
    if (!from || from->epoch >= at->first) {
      break;
    }
    lineage.push_back({from->epoch, from->step});
    // An epoch without a record: its commits still count, but its parents are unknown.
    at = epochs.find(from->epoch);
  }
  return lineage;
}

std::vector<StepId> OnLineage(const std::vector<LineageSegment>& lineage,
                              std::vector<StepId> commits) {
  std::sort(commits.begin(), commits.end(), std::greater<>());
  if (lineage.empty()) {
    return commits;
  }
  std::vector<StepId> chosen;
  for (const LineageSegment& segment : lineage) {
    for (const StepId& commit : commits) {
      if (commit.epoch == segment.epoch && commit.step <= segment.step_max) {
        chosen.push_back(commit);
      }
    }
  }
  return chosen;
}

absl::StatusOr<EpochMap> ReadEpochs(Storage& storage) {
  DT_ASSIGN_OR_RETURN(const std::vector<int64_t> numbers, ListEpochs(storage));
  EpochMap epochs;
  for (const int64_t number : numbers) {
    absl::StatusOr<EpochRecord> record = ReadEpoch(storage, number);
    if (absl::IsInvalidArgument(record.status())) {  // The record is damaged permanently.
      DT_LOG(Error) << record.status().message()
                    << "; where this attempt resumed is lost, so the epoch before it is searched";
      epochs[number] = std::nullopt;
      continue;
    }
    DT_RETURN_IF_ERROR(record.status());
    epochs[number] = *std::move(record);
  }
  return epochs;
}

}  // namespace dtrain::checkpoint
