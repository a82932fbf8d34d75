// What a watchdog makes of a queue of calls. Pure.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace dtrain::comm {

// A queue as the watchdog sees it; times are of the monotonic clock.
struct QueueSight {
  // Since when it has looked regularly: a process that was stopped or starved is late with
  // everything and has a moment to catch up.
  int64_t awake_nanos = 0;
  bool broken = false;
  bool heard = false;  // Somebody was given the reason.
  int64_t broken_nanos = 0;
  bool running = false;  // A call, with this limit.
  int64_t started_nanos = 0;
  absl::Duration timeout = absl::ZeroDuration();
  bool queued = false;  // A collective is the next to run.
  int64_t queued_nanos = 0;
};

enum class QueueAlarm : uint8_t {
  kNone,
  kStuck,      // A call goes on though its limit is over: it checks no deadline any more.
  kForgotten,  // A collective that peers wait in was never begun, because nobody waits for it.
  kUnheard,    // The group is broken, and nobody has asked.
};

// A call ends itself at its limit; later than that it is stuck.
inline constexpr absl::Duration kStuckAfter = absl::Seconds(3);
// Whoever waits hears of an error at once.
inline constexpr absl::Duration kUnheardAfter = absl::Seconds(1);

// `most`: how long a collective may be queued while nothing runs.
inline QueueAlarm AlarmOf(const QueueSight& sight, int64_t now_nanos, absl::Duration most) {
  const auto since = [now_nanos](int64_t nanos) { return absl::Nanoseconds(now_nanos - nanos); };
  const bool caught_up = since(sight.awake_nanos) > kStuckAfter;
  if (sight.broken) {
    return !sight.heard && since(sight.broken_nanos) > kUnheardAfter ? QueueAlarm::kUnheard
                                                                     : QueueAlarm::kNone;
  }
  if (sight.running) {
    return caught_up && since(sight.started_nanos) > sight.timeout + kStuckAfter
               ? QueueAlarm::kStuck
               : QueueAlarm::kNone;
  }
  return caught_up && sight.queued && since(sight.queued_nanos) > most ? QueueAlarm::kForgotten
                                                                       : QueueAlarm::kNone;
}

}  // namespace dtrain::comm
