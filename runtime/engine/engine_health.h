// Whether an engine can go on after a step that failed, and how the failure of one rank's step
// reaches the others. Not thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "dtrain/job.h"
#include "runtime/optimizer/engine_state.h"

namespace dtrain {

class EngineHealth {
 public:
  // REQUIRES: both outlive this object.
  EngineHealth(Job& job, const EngineState& state) : job_(job), state_(state) {}

  // OK, or why the engine takes no calls any more.
  absl::Status Usable() const;
  // A call has returned why, and later ones are refused.
  bool refuses() const { return refuses_; }
  // The failure that broke the engine; OK: there is none.
  const absl::Status& failure() const { return failure_; }
  // Why some weights may be of the last step and some of the one before; OK: they are not.
  const absl::Status& weights() const { return mixed_weights_; }

  // Something failed that the step under way returns at the latest when it ends. The first failure
  // counts.
  void Break(const absl::Status& failure) { failure_.Update(failure); }
  // The same, while weights changed: nothing may be saved any more.
  void Tear(const absl::Status& failure);
  // This rank's step `step` failed with `failure` while the others wait for its part, or soon will.
  // Ending the groups is the only honest way until a step can be recovered on all ranks together.
  // They are told the failure itself where another rank caused it. Does nothing to a rank alone,
  // whose engine is not broken by it.
  void EndGroups(int64_t step, const absl::Status& failure);
  // `failure`, with where the ranks of stage 3 parted if that is what failed; `readiness` is the
  // order in which this rank's gradients came. Asks the others once. Before the groups end.
  absl::Status Explained(const absl::Status& failure, const std::vector<int>& readiness);
  // The step's call returns `failure`. If the engine is broken, later calls are refused with it.
  void Refuse(const absl::Status& failure);

 private:
  Job& job_;
  const EngineState& state_;
  absl::Status failure_;    // There is no way on.
  bool refuses_ = false;    // It was returned: later calls say what to do.
  bool explained_ = false;  // Explained has asked the others, of this failure.
  absl::Status mixed_weights_;
};

}  // namespace dtrain
