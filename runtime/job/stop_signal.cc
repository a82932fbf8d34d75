#include "runtime/job/stop_signal.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/system/ignored_signal.h"
#include "base/system/resource_limits.h"
#include "comm/flight_dumper.h"

namespace dtrain {
namespace {

std::atomic<bool> deferred{false};
std::atomic<int> received{0};
std::atomic<int64_t> first_nanos{0};
static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");

// The line that SIGXCPU prints. It is made before the signal can come, because a handler cannot
// make it.
std::array<char, 256> cpu_time_line{};
std::atomic<size_t> cpu_time_bytes{0};

void Say(const char* line, size_t bytes) {
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line, bytes);
}

void MakeCpuTimeLine(const std::string& text) {
  const std::string line = text.empty() ? "" : absl::StrCat("dtrain: ", text, "\n");
  cpu_time_bytes = line.copy(cpu_time_line.data(), cpu_time_line.size());
}

[[noreturn]] void EndNow(int signal) {
  constexpr char kLine[] = "dtrain: stopped by a signal before training began; nothing to save\n";
  Say(kLine, sizeof(kLine) - 1);
  _exit(signal == SIGINT || signal == SIGHUP ? kExitInterrupted : kExitTemporary);
}

void OnSignal(int signal) {
  if (signal == SIGUSR1) {  // Schedulers warn by it before they take a node away.
    signal = SIGTERM;
  }
  if (signal == SIGXCPU) {  // It comes again each second: the first time says why.
    Say(cpu_time_line.data(), cpu_time_bytes.exchange(0));
  }
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
  MakeCpuTimeLine(ReserveCpuTime());
  struct sigaction action {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGXCPU, &action, nullptr);
  sigaction(SIGUSR1, &action, nullptr);
  if (!IsIgnored(SIGHUP)) {
    sigaction(SIGHUP, &action, nullptr);
  }
}

void DeferStopSignals() { deferred = true; }

void ForgetStopSignals() {
  deferred = false;
  if (const int late = received; late != 0) {
    EndNow(late);  // It came behind the last look of the job that has ended.
  }
}

void ForgetObeyedSignals() {
  received = 0;
  deferred = false;
}

int ReceivedStopSignal() { return received.load(); }

}  // namespace dtrain
