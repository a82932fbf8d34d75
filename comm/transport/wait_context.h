// How a wait inside a collective behaves. Internal to comm.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/deadline.h"

namespace dtrain::comm {

// How long a thread may burn its core before it sleeps, and only while the compute thread waits.
inline constexpr absl::Duration kSpin = absl::Microseconds(20);
// A sleeping wait looks up this often for aborts and dead peers.
inline constexpr absl::Duration kWaitSlice = absl::Milliseconds(25);

struct WaitContext {
  Deadline deadline;
  // Not OK: stop waiting with this status (the group was aborted). Cheap; called often.
  absl::FunctionRef<absl::Status()> interrupted;
  // Whether a compute thread waits for this call now, so that burning its core costs nobody.
  absl::FunctionRef<bool()> may_spin;
  absl::Duration spin = kSpin;  // For tests of what spinning spares; in shared memory.
};

}  // namespace dtrain::comm
