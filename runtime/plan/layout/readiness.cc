#include "runtime/plan/layout/readiness.h"

#include "absl/strings/str_format.h"

namespace dtrain::plan {

absl::StatusOr<std::vector<int>> ReadinessPositions(size_t entries,
                                                    absl::Span<const int> readiness) {
  std::vector<int> position(entries, -1);
  int next = 0;
  for (const int entry : readiness) {
    if (entry < 0 || static_cast<size_t>(entry) >= entries) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "readiness order names entry %d; the layout has %d entries", entry, entries));
    }
    if (position[static_cast<size_t>(entry)] >= 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("readiness order names entry %d twice", entry));
    }
    position[static_cast<size_t>(entry)] = next++;
  }
  for (int& p : position) {
    p = p >= 0 ? p : next++;
  }
  return position;
}

}  // namespace dtrain::plan
