// How a wait inside a collective behaves. Internal to comm.
#pragma once

#include <algorithm>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/deadline.h"

namespace dtrain::comm {

// How long a thread may burn its core before it sleeps, and only while the compute thread waits.
inline constexpr absl::Duration kSpin = absl::Microseconds(20);
// A sleeping wait looks up this often for aborts and dead peers.
inline constexpr absl::Duration kWaitSlice = absl::Milliseconds(25);

// Whether the waits of one thread are worth spinning for. Where ranks share a core the one that is
// awaited cannot run meanwhile, and over a slow link it comes later: then most waits sleep at once.
class SpinRecord {
 public:
  // Whether the wait at hand should spin; Note says then what came of it.
  bool Due() {
    if (spared_ == 0) {
      return true;
    }
    --spared_;
    return false;
  }
  void Note(bool seen) {
    futile_ = seen ? 0 : std::min(futile_ + 1, kFutileMax);
    spared_ = futile_ == kFutileMax ? kSpared : 0;
  }

 private:
  static constexpr int kFutileMax = 4;  // In a row.
  static constexpr int kSpared = 16;    // Waits before the next attempt.
  int futile_ = 0;
  int spared_ = 0;
};

struct WaitContext {
  Deadline deadline;
  // Not OK: stop waiting with this status (the group was aborted). Cheap; called often.
  absl::FunctionRef<absl::Status()> interrupted;
  // Whether a compute thread waits for this call now, so that burning its core costs nobody.
  absl::FunctionRef<bool()> may_spin;
  absl::Duration spin = kSpin;  // For tests of what spinning spares; not over RDMA.
};

}  // namespace dtrain::comm
