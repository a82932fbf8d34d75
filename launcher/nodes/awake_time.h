// The time in which an agent has watched the others. One that was stopped, suspended or starved has
// not: it would take its own absence for their silence. So what lies between two looks counts up to
// a limit only. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace dtrain::launcher {

class AwakeTime {
 public:
  // `look_max`: looks that come later than this are late because the watcher itself did not run.
  AwakeTime(int64_t now_nanos, absl::Duration look_max)
      : look_max_nanos_(absl::ToInt64Nanoseconds(look_max)),
        looked_nanos_(now_nanos),
        awake_nanos_(now_nanos) {}

  // A look at `now_nanos`: gives the time of a clock that began as that one and stood still in
  // absences.
  int64_t Look(int64_t now_nanos) {
    awake_nanos_ += std::clamp<int64_t>(now_nanos - looked_nanos_, 0, look_max_nanos_);
    looked_nanos_ = now_nanos;
    return awake_nanos_;
  }

 private:
  const int64_t look_max_nanos_;
  int64_t looked_nanos_;
  int64_t awake_nanos_;
};

}  // namespace dtrain::launcher
