// The small exchange that ends every step: what all ranks must know before anything durable
// changes.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/group.h"

namespace dtrain {

// What one rank brings. Fixed size, sent as bytes.
struct StepVote {
  double loss_sum = 0;
  int64_t count = 0;          // Samples behind loss_sum.
  int64_t samples = 0;        // Of this rank's micro-batches, for rates.
  int64_t step = 0;           // Steps finished before this one.
  uint64_t epoch = 0;         // Of the group.
  double sum_of_squares = 0;  // Of the reduced gradient: equal on every rank, unless of_shard.
  int32_t stop_signal = 0;
  int32_t failed = 0;    // This rank's step failed before the update.
  int32_t of_shard = 0;  // sum_of_squares is of this rank's shard alone.
  // Of how many parameters that this rank's loss did not use it wants to know whether others did.
  int32_t unused_parameters = 0;
  int32_t buffers_changed = 0;  // This rank wrote to buffers of the module.
};

struct StepVerdict {
  double loss_sum = 0;
  int64_t count = 0;
  int64_t samples = 0;
  int stop_signal = 0;  // The first rank's that has one.
  bool failed = false;  // Some rank's step failed: nobody updates.
  int failed_rank = -1;
  double sum_of_squares = 0;
  bool finite = true;            // The gradient is finite.
  bool compares_unused = false;  // Every rank's unused_parameters is above 0.
  bool buffers_changed = false;  // On some rank.
};

// Collective; blocks. `name` is shown in reports. Sums are taken in rank order, so every rank gets
// the same bits. Internal names ranks that are not at the same step or epoch.
absl::StatusOr<StepVerdict> Agree(comm::Group& group, const StepVote& vote,
                                  const char* name = "step agreement");

// The decision alone: pure.
absl::StatusOr<StepVerdict> Decide(const std::vector<StepVote>& votes);

}  // namespace dtrain
