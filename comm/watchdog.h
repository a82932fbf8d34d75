// The thread that looks after the host groups of a process: what nobody waits for, and what is
// stuck where no deadline is checked, is seen all the same.
//
// Thread-safe. One thread a process, named dtrain-watchdog; it is there while anything is watched.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/time/time.h"

namespace dtrain::comm {

// How often it looks.
inline constexpr absl::Duration kWatchPeriod = absl::Milliseconds(250);

// Dropping it ends the watch, after a look that is under way.
class Watch {
 public:
  virtual ~Watch() = default;
};

// `look` is called every kWatchPeriod, with the time of the monotonic clock. It must be short and
// must neither start nor end a watch.
std::unique_ptr<Watch> StartWatch(std::function<void(int64_t now_nanos)> look);

}  // namespace dtrain::comm
