// The random numbers that micro-batches draw. In Step they come from a seed of their own, while the
// program's generators stand still; in a loop of the program's own the default generators are
// seeded for what comes next. Not thread-safe.
#pragma once

#include <cstdint>

#include "dtrain/job.h"
#include "runtime/job/micro_batch_seed.h"

namespace dtrain {

class MicroBatchRandom {
 public:
  // An engine whose finished steps are `steps`. REQUIRES: both outlive this object.
  MicroBatchRandom(Job& job, const int64_t& steps);

  // The seed of this rank's micro-batch `micro` of a step, or of an evaluation.
  uint64_t SeedOf(MicroBatchOf pass, int64_t micro) const;

  // For a loop of the program's own. Seeds the generators for the micro-batch behind those that are
  // counted.
  void SeedNextForward();
  // A backward has counted samples, so that its micro-batch is over.
  void Count() { ++counted_; }
  // Whether the micro-batch is over that the generators were seeded for.
  bool is_over() const { return counted_ != seeded_; }
  // A step begins anew.
  void Reset() { counted_ = 0; }

 private:
  Job& job_;
  const StepsOfEngines::Entry entry_;  // This engine's steps among those of the job.
  int64_t counted_ = 0;                // Micro-batches of this step whose samples are counted.
  int64_t seeded_ = 0;                 // The one for which the generators were seeded last.
};

}  // namespace dtrain
