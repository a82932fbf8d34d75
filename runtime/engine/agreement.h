// The small exchange that ends every step: what all ranks must know before anything durable
// changes. In an evaluation it comes before each micro-batch, and once behind the last; in a step
// that lasts, also between some micro-batches (stop_looks.h).
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "comm/group.h"

namespace dtrain {

// A rank's part of the agreement. Fixed size, sent as bytes.
struct StepVote {
  double loss_sum = 0;
  int64_t count = 0;          // Samples behind loss_sum.
  int64_t samples = 0;        // In this rank's micro-batches, for rates; an evaluation's batches.
  int64_t step = 0;           // Steps finished before this one.
  uint64_t epoch = 0;         // The group's.
  double sum_of_squares = 0;  // The reduced gradient's: equal on every rank, unless of_shard.
  int32_t stop_signal = 0;
  int32_t failed = 0;    // This rank's step failed before the update.
  int32_t of_shard = 0;  // sum_of_squares is of this rank's shard alone.
  // How many parameters this rank's loss did not use and wants to compare with the others.
  int32_t unused_parameters = 0;
  int32_t buffers_changed = 0;  // This rank wrote to buffers of the module.
  // In an evaluation: this rank has a batch for what follows, or it must run the loss function like
  // the others and has none to run it on.
  int32_t has_batch = 0;
  int32_t lacks_spare = 0;
  uint32_t save = 0;         // StepHooks::save_vote.
  double micro_batch_s = 0;  // A micro-batch of this step took so long.
  double lr_factor = 1;      // EngineOptions::lr_factor of the step.
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
  int ranks_with_batch = 0;
  int rank_without_spare = -1;  // The first that lacks one.
  double micro_batch_s = 0;     // The longest of any rank.
  uint32_t save = 0;            // Every bit that a rank has set.

  double loss() const {  // NaN of no samples.
    return count > 0 ? loss_sum / static_cast<double>(count)
                     : std::numeric_limits<double>::quiet_NaN();
  }
  // Whether the step changes weights: of a mean over no samples there is no gradient.
  bool updates() const { return finite && count > 0; }
};

// Collective; blocks. `name` is shown in reports. Sums are taken in rank order, so every rank gets
// the same bits. Internal names ranks that are not at the same step or epoch. `deadline`: as
// CollectiveOptions has it.
absl::StatusOr<StepVerdict> Agree(comm::Group& group, const StepVote& vote,
                                  const char* name = "step agreement",
                                  Deadline deadline = Deadline::Infinite());

// The decision alone: pure.
absl::StatusOr<StepVerdict> Decide(const std::vector<StepVote>& votes);

// Marks a failure to which all ranks have come together, so that none waits for another; OK stays
// OK.
absl::Status OnAllRanks(absl::Status failure);
// Whether `failure` has the mark, which is removed.
bool TakeMark(absl::Status& failure);

}  // namespace dtrain
