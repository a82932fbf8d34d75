#include "comm/nccl/bounded_call.h"

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "base/threads/worker.h"

namespace dtrain::comm {
namespace {

// A longer wait would overflow chrono's sum of it and the current time.
constexpr absl::Duration kLongest = absl::Hours(24 * 365);

struct Progress {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
};

}  // namespace

bool ReturnsWithin(absl::Duration bound, std::function<void()> call) {
  const auto progress = std::make_shared<Progress>();
  std::thread thread([progress, run = std::move(call)] {
    PrepareThread("dt-nccl-end", false);
    run();
    std::lock_guard lock(progress->mutex);
    progress->done = true;
    progress->changed.notify_all();
  });
  std::unique_lock lock(progress->mutex);
  const bool done =
      progress->changed.wait_for(lock, absl::ToChronoNanoseconds(std::min(bound, kLongest)),
                                 [&progress] { return progress->done; });
  lock.unlock();
  if (done) {
    thread.join();
  } else {
    thread.detach();
  }
  return done;
}

}  // namespace dtrain::comm
