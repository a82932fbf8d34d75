#include "runtime/checkpoint/staging_memory.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_format.h"
#include "base/console/progress_line.h"
#include "base/system/available_memory.h"
#include "checkpoint/commit/staged_source.h"
#include "runtime/job/job_state.h"

namespace dtrain {
uint64_t StagingBytes(Job& job, uint64_t copied) {
  if (const int64_t configured = job.config().checkpoint_staging_memory(); configured > 0) {
    return static_cast<uint64_t>(configured);
  }
  const int64_t free =
      std::max<int64_t>(0, ReadAvailableMemory().bytes()) / job.state().env.ranks_on_node();
  const auto quarter = static_cast<uint64_t>(free) / 4;
  const uint64_t segments = (copied + checkpoint::kSegmentBytes - 1) / checkpoint::kSegmentBytes;
  return std::min(segments * checkpoint::kSegmentBytes,
                  std::max(quarter, 4 * checkpoint::kSegmentBytes));
}

absl::Status CheckStagingRoom(const StagingRoom& room) {
  const auto least = static_cast<int64_t>((room.on_gpu ? 2 : 1) * checkpoint::kSegmentBytes);
  if (room.configured_bytes > 0 && room.configured_bytes < least) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "checkpoint.staging_memory is %d bytes; a save beside training copies in blocks and needs "
        "at least %d bytes on each rank. Set it to that or more, or to 0, which takes at most a "
        "quarter of what is free",
        room.configured_bytes, least));
  }
  const int64_t wanted = std::max(room.configured_bytes, least);
  if (wanted <= room.available_bytes / room.ranks) {
    return absl::OkStatus();
  }
  const std::string beside =
      room.replica_bytes > 0 ? absl::StrFormat(" beside checkpoint.replica_memory, %s",
                                               FormatBytes(static_cast<double>(room.replica_bytes)))
                             : "";
  const std::string together = FormatBytes(static_cast<double>(wanted) * room.ranks);
  const std::string available = FormatBytes(static_cast<double>(room.available_bytes));
  if (room.configured_bytes == 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "a save beside training needs at least %d bytes on each of %d ranks of this node, together "
        "%s; %s are available%s. Free memory, or set checkpoint.async to false",
        wanted, room.ranks, together, available, beside));
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "checkpoint.staging_memory is %d bytes on each of %d ranks of this node, together %s; %s are "
      "available%s. Lower it, or set it to 0, which takes at most a quarter of what is free",
      wanted, room.ranks, together, available, beside));
}

absl::Status CheckStagingMemory(Job& job) {
  const Config& config = job.config();
  if (!config.checkpoint_async()) {
    return absl::OkStatus();
  }
  const int64_t replicas =
      config.checkpoint_replicas() > 0 ? config.checkpoint_replica_memory() : 0;
  return CheckStagingRoom(
      {.configured_bytes = config.checkpoint_staging_memory(),
       .on_gpu = !job.state().device->is_host(),
       .ranks = job.state().env.ranks_on_node(),
       .available_bytes = std::max<int64_t>(0, ReadAvailableMemory().bytes() - replicas),
       .replica_bytes = replicas});
}

}  // namespace dtrain
