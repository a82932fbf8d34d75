#include "runtime/job/stop_signal.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>

#include "base/status.h"
#include "base/system/ignored_signal.h"
#include "comm/flight_dumper.h"

namespace dtrain {
namespace {

std::atomic<bool> deferred{false};
std::atomic<int> received{0};
std::atomic<int64_t> first_nanos{0};
static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");

[[noreturn]] void EndNow(int signal) {
  constexpr char kLine[] = "dtrain: stopped by a signal before training began; nothing to save\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kLine, sizeof(kLine) - 1);
  _exit(signal == SIGTERM ? kExitTemporary : kExitInterrupted);
}

void OnSignal(int signal) {
  if (!deferred) {
    EndNow(signal);
  }
  constexpr int64_t kForwardedNanos = 1'000'000'000;
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t nanos = static_cast<int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
  if (signal == SIGTERM) {  // Perhaps because this rank hangs: it cannot tell by itself.
    comm::FlightDumper::RequestForSignal(signal);
  }
  int none = 0;
  if (received.compare_exchange_strong(none, signal)) {
    first_nanos = nanos;
  } else if (signal == SIGINT && nanos - first_nanos.load() > kForwardedNanos) {
    _exit(kExitInterrupted);
  }
}

}  // namespace

void InstallStopSignals() {
  struct sigaction action {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  if (!IsIgnored(SIGHUP)) {
    sigaction(SIGHUP, &action, nullptr);
  }
}

void DeferStopSignals() { deferred = true; }

int ReceivedStopSignal() { return received.load(); }

}  // namespace dtrain
