// Calls of a store with a deadline against which this process's own absence does not count. Blocks
// for as long as the calls do.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/deadline.h"
#include "launcher/nodes/peers.h"

namespace dtrain::launcher {

inline absl::Status StatusOfAnswer(const absl::Status& answer) { return answer; }
template <typename Value>
absl::Status StatusOfAnswer(const absl::StatusOr<Value>& answer) {
  return answer.status();
}

// The answer of `call`, which gets a deadline. It is asked again if its time went by while this
// process was stopped, because the answer of a store that stopped with it could not come in time.
// REQUIRES: `call` may be made twice.
template <typename Call>
auto AskStore(const Call& call, Clock& clock = Clock::Real())
    -> decltype(call(Deadline::Infinite())) {
  // A call that takes so much longer than it may was held up by this process.
  constexpr absl::Duration kOverslept = absl::Seconds(1);
  constexpr int kTriesMax = 3;
  for (int tries = 1;; ++tries) {
    const int64_t began = clock.MonotonicNanos();
    auto answer = call(Deadline::After(kStoreCallTimeout, clock));
    const absl::Duration took = absl::Nanoseconds(clock.MonotonicNanos() - began);
    if (!absl::IsDeadlineExceeded(StatusOfAnswer(answer)) || tries == kTriesMax) {
      return answer;
    }
    // A shorter absence looks like a store that is silent. One that goes on answers at once.
    if (took < kStoreCallTimeout + kOverslept) {
      return call(Deadline::After(kOverslept, clock));
    }
  }
}

}  // namespace dtrain::launcher
