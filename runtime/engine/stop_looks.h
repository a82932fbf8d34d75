// When the ranks look for a stop signal between the micro-batches of a step
// (EngineOptions::may_leave_step), so that a step of minutes is left within about a second.
//
// A look is an agreement, after which all ranks leave the step behind the same micro-batch or none
// does. When one is due follows from how long a micro-batch has taken on the slowest rank, which
// the ranks told each other at the agreement before, so that all of them come to it: a step that is
// shorter than half a second has none. Not thread-safe.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "dtrain/job.h"
#include "dtrain/metrics.h"
#include "runtime/engine/agreement.h"
#include "runtime/optimizer/engine_state.h"

namespace dtrain {

class StopLooks {
 public:
  // REQUIRES: both outlive this object.
  StopLooks(Job& job, const EngineState& state) : job_(job), state_(state) {}

  // A step begins.
  void Begin();
  // Whether the ranks look behind the first `done` of the step's `all` micro-batches. Equal on all
  // ranks. Never in a program with several engines, one of which would be left a step behind the
  // others, and never again once the ranks have agreed to stop: a program that goes on without a
  // save gets whole steps.
  bool Due(int64_t done, int64_t all) const;
  // Collective: whether a rank has a stop signal, which then is the job's.
  absl::StatusOr<bool> Look(int64_t done);

  // For the vote at the end of a step of `done` micro-batches, and from its verdict.
  double MicroBatchSeconds(int64_t done) const;
  void Take(const StepVerdict& verdict);

 private:
  Job& job_;
  const EngineState& state_;
  int64_t every_ = 1;  // Micro-batches from one look to the next: at first nobody knows how long.
  int64_t next_ = 1;   // Micro-batches before the next look.
  int64_t begin_nanos_ = 0;
};

// The report of a step that a stop signal has ended (StepReport::stopped). The program is to save
// behind it.
StepReport StoppedStep(Job& job, const EngineState& state);

}  // namespace dtrain
