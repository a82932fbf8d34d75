#include "runtime/engine/stop_looks.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/deadline.h"
#include "base/status.h"
#include "runtime/job/job_state.h"

namespace dtrain {
namespace {

// Half of a second, so that a step which is twice as slow as the one before is still left within
// one.
constexpr double kSecondsBetweenLooks = 0.5;
constexpr double kEveryMax = 1e9;

}  // namespace

void StopLooks::Begin() {
  next_ = every_;
  begin_nanos_ = Clock::Real().MonotonicNanos();
}

bool StopLooks::Due(int64_t done, int64_t all) const {
  return state_.options.may_leave_step && done == next_ && done < all && !job_.stop_agreed() &&
         job_.state().engines.size() == 1;
}

double StopLooks::MicroBatchSeconds(int64_t done) const {
  const double seconds = static_cast<double>(Clock::Real().MonotonicNanos() - begin_nanos_) * 1e-9;
  return seconds / static_cast<double>(std::max<int64_t>(1, done));
}

void StopLooks::Take(const StepVerdict& verdict) {
  const double seconds = std::max(verdict.micro_batch_s, kSecondsBetweenLooks / kEveryMax);
  every_ = std::max<int64_t>(1, std::llround(std::floor(kSecondsBetweenLooks / seconds)));
}

absl::StatusOr<bool> StopLooks::Look(int64_t done) {
  const StepVote vote{.step = state_.progress.step,
                      .epoch = job_.group().epoch(),
                      .stop_signal = job_.stop_signal(),
                      .micro_batch_s = MicroBatchSeconds(done)};
  // A rank may be late in its data source or in the loss function, as in an evaluation.
  DT_ASSIGN_OR_RETURN(const StepVerdict verdict,
                      Agree(job_.group(), vote, "stop agreement",
                            Deadline::After(absl::Seconds(job_.config().comm_timeout_seconds()))));
  Take(verdict);
  next_ = done + every_;
  if (verdict.stop_signal != 0) {
    job_.AgreeToStop(verdict.stop_signal);
  }
  return verdict.stop_signal != 0;
}

StepReport StoppedStep(Job& job, const EngineState& state) {
  job.state().ended_by_stop = "a step";
  StepReport none;
  none.step = state.progress.step;
  none.loss = std::numeric_limits<double>::quiet_NaN();
  none.skipped = true;
  none.stopped = true;
  none.unit = state.options.sample_unit;
  return none;
}

}  // namespace dtrain
