// The errors of stores for keys that did not come. Pure but for the clock. Internal to comm/net.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"

namespace dtrain::comm {

// How long a call has waited.
class WaitTimer {
 public:
  absl::Duration Elapsed() const {
    return absl::Trunc(absl::Nanoseconds(Clock::Real().MonotonicNanos() - start_),
                       absl::Milliseconds(1));
  }

 private:
  const int64_t start_ = Clock::Real().MonotonicNanos();
};

// DeadlineExceeded that names the store, the first missing keys and the time waited.
absl::Status MissingKeyError(absl::string_view store, const std::vector<std::string>& missing,
                             absl::Duration waited);

}  // namespace dtrain::comm
