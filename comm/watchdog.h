// The thread that watches the host groups of a process. It finds errors that nobody waits for, and
// calls that are stuck where no deadline is checked.
//
// Thread-safe. Each process has one such thread, named dtrain-watchdog, while anything is watched.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"

namespace dtrain::comm {

// Time between two inspections.
inline constexpr absl::Duration kWatchPeriod = absl::Milliseconds(250);

// Dropping it ends the watch, after an inspection that is under way.
class Watch {
 public:
  virtual ~Watch() = default;
};

// `inspect` is called every kWatchPeriod, with the time of the monotonic clock, and at once when
// something arrives at the descriptor `fd`, which it has to read then. It must be short and must
// neither start nor end a watch; nor must `abandon`, if there is one (AbandonGroups). REQUIRES:
// `fd`, if it is not -1, is open as long as the watch, and no other watch has it.
std::unique_ptr<Watch> StartWatch(std::function<void(int64_t now_nanos)> inspect,
                                  std::function<void(const std::string& reason)> abandon = nullptr,
                                  int fd = -1);

// Has the watchdog call `abandon` of what is watched, within kWatchPeriod: every host group of this
// process gives up, here and on its peers. It is for one who knows of a loss that no connection
// shows, such as a host that falls silent. From an inspection it is done behind this one.
void AbandonGroups(const std::string& reason);

}  // namespace dtrain::comm
