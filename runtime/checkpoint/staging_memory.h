// The memory in which saves in the background keep their copies (checkpoint.staging_memory).
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "dtrain/job.h"

namespace dtrain {

// Bytes on this rank: the configured ones, else all of the `live` bytes that a save copies if that
// is at most a quarter of the node's free memory, divided among its ranks, else that quarter, and
// never less than a few segments.
uint64_t StagingBytes(Job& job, uint64_t live);

// InvalidArgument: the node has no memory for what checkpoint.staging_memory asks for.
absl::Status CheckStagingMemory(Job& job);

}  // namespace dtrain
