#include "runtime/checkpoint/staging_memory.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/console/progress_line.h"
#include "base/system/available_memory.h"
#include "checkpoint/commit/staged_source.h"
#include "runtime/job/job_state.h"

namespace dtrain {
uint64_t StagingBytes(Job& job, uint64_t live) {
  if (const int64_t configured = job.config().checkpoint_staging_memory(); configured > 0) {
    return static_cast<uint64_t>(configured);
  }
  const int64_t free =
      std::max<int64_t>(0, ReadAvailableMemory().bytes()) / job.state().env.ranks_on_node();
  const auto quarter = static_cast<uint64_t>(free) / 4;
  const uint64_t segments = (live + checkpoint::kSegmentBytes - 1) / checkpoint::kSegmentBytes;
  return std::min(segments * checkpoint::kSegmentBytes,
                  std::max(quarter, 4 * checkpoint::kSegmentBytes));
}

absl::Status CheckStagingMemory(Job& job) {
  const int64_t wanted = job.config().checkpoint_staging_memory();
  const Config& config = job.config();
  const int64_t replicas =
      config.checkpoint_replicas() > 0 ? config.checkpoint_replica_memory() : 0;
  const int64_t available = std::max<int64_t>(0, ReadAvailableMemory().bytes() - replicas);
  const int ranks = job.state().env.ranks_on_node();
  if (!config.checkpoint_async() || wanted <= available / ranks) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "checkpoint.staging_memory is %d bytes on each of %d ranks of this node, together %s; %s are "
      "available%s. Lower it, or set it to 0, which takes at most a quarter of what is free",
      wanted, ranks, FormatBytes(static_cast<double>(wanted) * ranks),
      FormatBytes(static_cast<double>(available)),
      replicas > 0 ? absl::StrFormat(" beside checkpoint.replica_memory, %s",
                                     FormatBytes(static_cast<double>(replicas)))
                   : std::string()));
}

}  // namespace dtrain
