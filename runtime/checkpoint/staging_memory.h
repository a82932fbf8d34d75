// The memory in which saves in the background keep their copies (checkpoint.staging_memory).
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "dtrain/job.h"

namespace dtrain {

// Bytes on this rank: the configured ones, else all of the `copied` bytes of a save if that is at
// most a quarter of the node's free memory, divided among its ranks, else that quarter, and never
// less than a few segments.
uint64_t StagingBytes(Job& job, uint64_t copied);

// The memory of a node, and how much of it saves beside training may take.
struct StagingRoom {
  int64_t configured_bytes = 0;  // checkpoint.staging_memory, of one rank.
  bool on_gpu = false;           // A second block is needed, through which a GPU's memory is read.
  int ranks = 1;                 // Of the node.
  int64_t available_bytes = 0;   // To all of them, without the next.
  int64_t replica_bytes = 0;     // Kept free for checkpoint.replica_memory.
};
// InvalidArgument: what is configured is less than the smallest part of a snapshot that can be
// copied at a time, or the node has no memory for it. Pure.
absl::Status CheckStagingRoom(const StagingRoom& room);
// The same of the job's node, if it saves beside training.
absl::Status CheckStagingMemory(Job& job);

}  // namespace dtrain
