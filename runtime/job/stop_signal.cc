#include "runtime/job/stop_signal.h"

#include <unistd.h>

#include <atomic>
#include <csignal>

#include "base/status.h"

namespace dtrain {
namespace {

std::atomic<int> received{0};
static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");

void OnSignal(int signal) {
  int none = 0;
  if (!received.compare_exchange_strong(none, signal)) {
    _exit(kExitInterrupted);
  }
}

}  // namespace

void InstallStopSignals() {
  struct sigaction action {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    sigaction(signal, &action, nullptr);
  }
}

int ReceivedStopSignal() { return received.load(); }

}  // namespace dtrain
