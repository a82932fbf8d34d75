// How a watchdog judges a queue of calls. Pure.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace dtrain::comm {

// The state of a queue that the watchdog judges; times are of the monotonic clock.
struct QueueSnapshot {
  // Since when the watchdog has run regularly. A process that was stopped or starved is late with
  // everything, so it gets a moment to catch up.
  int64_t awake_nanos = 0;
  bool broken = false;
  bool reported = false;  // A caller was given the reason.
  int64_t broken_nanos = 0;
  bool running = false;  // A call is running, with the limit below.
  int64_t started_nanos = 0;
  absl::Duration timeout = absl::ZeroDuration();
  bool queued = false;  // A collective is the next to run.
  int64_t queued_nanos = 0;
};

enum class QueueAlarm : uint8_t {
  kNone,
  kStuck,       // A call goes on though its limit is over: it checks no deadline any more.
  kNotBegun,    // A collective that peers wait in was never begun, because nobody waits for it.
  kUnreported,  // The group is broken, and no caller was given the reason.
};

// A call ends itself at its limit; later than that it is stuck.
inline constexpr absl::Duration kStuckAfter = absl::Seconds(3);
// A caller that waits gets an error at once; after this time nobody waits.
inline constexpr absl::Duration kUnreportedAfter = absl::Seconds(1);

// `most`: how long a collective may be queued while nothing runs.
inline QueueAlarm AlarmOf(const QueueSnapshot& queue, int64_t now_nanos, absl::Duration most) {
  const auto since = [now_nanos](int64_t nanos) { return absl::Nanoseconds(now_nanos - nanos); };
  const bool caught_up = since(queue.awake_nanos) > kStuckAfter;
  if (queue.broken) {
    return !queue.reported && since(queue.broken_nanos) > kUnreportedAfter ? QueueAlarm::kUnreported
                                                                           : QueueAlarm::kNone;
  }
  if (queue.running) {
    return caught_up && since(queue.started_nanos) > queue.timeout + kStuckAfter
               ? QueueAlarm::kStuck
               : QueueAlarm::kNone;
  }
  return caught_up && queue.queued && since(queue.queued_nanos) > most ? QueueAlarm::kNotBegun
                                                                       : QueueAlarm::kNone;
}

}  // namespace dtrain::comm
