#include "runtime/checkpoint/save_policy.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/strings/str_format.h"
#include "base/device_error.h"

namespace dtrain {

bool IsDue(const Config& config, int64_t step) {
  const int64_t interval = config.checkpoint_interval();
  return config.checkpoint_continuous() || (interval > 0 && step % interval == 0);
}

bool SavesOnTheWay(const Config& config) {
  return config.checkpoint_continuous() || config.checkpoint_interval() > 0;
}

checkpoint::Retention KeptCheckpoints(const Config& config) {
  const BestCheckpointsConfig best = config.checkpoint_best();
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  return {.newest = static_cast<int>(std::min(config.checkpoint_keep(), kMost)),
          .every = config.checkpoint_keep_every(),
          .best = static_cast<int>(best.count),
          .metric = best.metric,
          .larger_is_better = best.larger_is_better};
}

// It is not temporary: both jobs would take it from each other through all their restarts.
absl::Status Fenced(const absl::Status& status) {
  return absl::FailedPreconditionError(absl::StrFormat(
      "%s. Another job writes to this run directory: stop one of them, or give one a "
      "--run-dir of its own",
      status.message()));
}

absl::Status Stopped(const std::string& stop, const absl::Status& saved,
                     const std::string& folder) {
  if (saved.ok()) {
    return absl::CancelledError(
        absl::StrFormat("%s, which is saved in %s; the same command resumes", stop, folder));
  }
  const std::string text =
      absl::StrFormat("%s, but that step could not be saved: %s", stop, saved.message());
  if (absl::IsResourceExhausted(saved)) {
    return absl::ResourceExhaustedError(text);
  }
  absl::Status stopped = absl::UnavailableError(text);
  // The launcher would else take it for the loss of a peer, and hear nothing of the disk.
  if (IsDeviceError(saved) || absl::IsPermissionDenied(saved)) {
    MarkDeviceError(stopped);
  }
  return stopped;
}

}  // namespace dtrain
