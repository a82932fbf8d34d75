// How long a collective may take: learnt from those before it.
//
// A fixed limit must allow for the slowest start and the longest save, so it names a missing rank
// minutes after everybody has noticed. What has run a few times is known better: five times the
// longest call of the group so far. The first call of a name has the configured limit: memory is
// touched, libraries and devices are set up, and the first save or evaluation of a long run must
// not be measured by its steps. The next ones have at least kEarlyLeast, because sizes are tuned
// and graphs captured then; after three the limit is learnt. It never falls below `least`, because
// a wrong stop costs more than a late one. Durations come from the caller: there is no clock here.
// CallTimeouts is driven by one thread at a time.
#pragma once

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "comm/call.h"

namespace dtrain::comm {

struct TimeoutLimits {
  absl::Duration most = absl::Minutes(10);  // As configured: never more.
  absl::Duration least =
      absl::Seconds(10);  // Of a learnt limit; `most` or more: nothing is learnt.
};

inline constexpr int64_t kTimeoutFactor = 5;
// Of a kind and name: calls before the limit is learnt. The first has `most`, the others at least
// kEarlyLeast.
inline constexpr int64_t kFirstCalls = 3;
inline constexpr absl::Duration kEarlyLeast = absl::Seconds(60);

// The limit of a call whose like has ended well `calls` times, in a group whose longest call took
// `longest`.
absl::Duration CallTimeout(const TimeoutLimits& limits, int64_t calls, absl::Duration longest);

class CallTimeouts {
 public:
  explicit CallTimeouts(const TimeoutLimits& limits) : limits_(limits) {}

  absl::Duration Of(const CallHeader& header) const;
  // `header` ended well after `duration`.
  void Observe(const CallHeader& header, absl::Duration duration);

 private:
  // Names beyond it count as new for ever: their calls have `most`.
  static constexpr size_t kNamesMax = 4096;

  const TimeoutLimits limits_;
  absl::Duration longest_ = absl::ZeroDuration();
  absl::flat_hash_map<uint64_t, int64_t> calls_;  // By the hash of kind and name.
};

}  // namespace dtrain::comm
