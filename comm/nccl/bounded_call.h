// A call that may never return, on a thread of its own. ncclCommAbort waits for the device's
// streams, and ncclCommDeregister for the processes of other ranks.
#pragma once

#include <functional>

#include "absl/time/time.h"

namespace dtrain::comm {

// Runs `call` and waits at most `bound` for its end. False if the call goes on. It may go on for
// ever, so everything that it uses must live as long.
bool ReturnsWithin(absl::Duration bound, std::function<void()> call);

}  // namespace dtrain::comm
