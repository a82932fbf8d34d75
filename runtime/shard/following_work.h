// What follows a collective in a thread of its own, as a Work: who waits for it waits for both.
#pragma once

#include <functional>

#include "base/threads/worker.h"
#include "comm/work.h"

namespace dtrain {

// Calls `then` in the thread of `worker` once `first` is done, unless that failed: then its error
// is the result and `then` is never called. `worker` comes to it when all that was submitted before
// is over; until then it blocks there.
comm::Work FollowWith(const comm::Work& first, Worker& worker, std::function<void()> then);

}  // namespace dtrain
