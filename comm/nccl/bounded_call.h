// A call that may never return, on a thread of its own: ncclCommAbort waits for the device's
// streams, ncclCommDeregister for the processes of other ranks.
#pragma once

#include <functional>

#include "absl/time/time.h"

namespace dtrain::comm {

// Runs `call` and waits for its end at most `bound`. False: it goes on, so what it uses must live
// as long as it does.
bool ReturnsWithin(absl::Duration bound, std::function<void()> call);

}  // namespace dtrain::comm
