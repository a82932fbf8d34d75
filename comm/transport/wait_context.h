// How a wait inside a collective behaves. Used by the thread that waits. Internal to comm.
#pragma once

#include <algorithm>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/deadline.h"

namespace dtrain::comm {

// How long a thread may burn its core before it sleeps, and only while the compute thread waits.
inline constexpr absl::Duration kSpin = absl::Microseconds(20);
// A sleeping wait wakes this often to check for aborts and dead peers.
inline constexpr absl::Duration kWaitSlice = absl::Milliseconds(25);

// Whether spinning pays off for the waits of one thread. If ranks share a core, the awaited rank
// cannot run while another spins, and over a slow link data come too late: then most waits sleep at
// once.
class SpinRecord {
 public:
  // Whether the next wait should spin; the caller then reports the outcome to Note.
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
  // Consecutive spins without success after which waits sleep at once.
  static constexpr int kFutileMax = 4;
  static constexpr int kSpared = 16;  // Waits before the next attempt.
  int futile_ = 0;
  int spared_ = 0;
};

struct WaitContext {
  Deadline deadline;
  // Not OK: stop waiting with this status (the group was aborted). Cheap; called often.
  absl::FunctionRef<absl::Status()> interrupted;
  // Whether a compute thread waits for this call now, so that spinning takes no core from other
  // work.
  absl::FunctionRef<bool()> may_spin;
  absl::Duration spin = kSpin;  // Another value is for tests; not used over RDMA.
};

}  // namespace dtrain::comm
