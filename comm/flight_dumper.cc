#include "comm/flight_dumper.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "base/threads/worker.h"
#include "comm/flight_recorder.h"

namespace dtrain::comm {
namespace {

// Bits of `wanted`, the reasons for a dump: several may be set before the thread wakes.
constexpr int kFailure = 1 << 8;
constexpr int kStop = 1 << 9;
constexpr int kCrash = 1 << 10;  // The low bits hold a signal's number.

// A thread whose collective has failed mostly ends the job, and writes within this time by itself.
// The dumper's thread would hold it up: it has a low priority and takes the same core.
constexpr absl::Duration kOwnRecord = absl::Milliseconds(100);

std::atomic<int> the_bell{-1};
// When a collective has failed last, and when the records in the file were taken.
std::atomic<int64_t> failed_nanos{0};
std::atomic<int64_t> dumped_nanos{0};
bool IsFailureWritten() { return dumped_nanos.load() >= failed_nanos.load(); }
std::atomic<int> wanted{0};
std::atomic<bool> crash_dumped{false};
static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");

void Ring(int why) {
  wanted.fetch_or(why);
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(the_bell.load(), &one, sizeof(one));
}

}  // namespace

absl::StatusOr<std::unique_ptr<FlightDumper>> FlightDumper::Start(FlightDumperOptions options) {
  UniqueFd bell(eventfd(0, EFD_CLOEXEC));
  if (!bell.valid()) {
    return ErrnoStatus(errno, "an eventfd for the flight recorder");
  }
  int none = -1;
  if (!the_bell.compare_exchange_strong(none, bell.get())) {
    return absl::FailedPreconditionError("this process has a flight dumper already");
  }
  wanted.store(0);
  dumped_nanos.store(0);
  static const bool hooked = [] {
    AddCrashHook(DumpInCrash);
    return true;
  }();
  static_cast<void>(hooked);
  return std::unique_ptr<FlightDumper>(new FlightDumper(std::move(options), std::move(bell)));
}

FlightDumper::FlightDumper(FlightDumperOptions options, UniqueFd bell)
    : options_(std::move(options)), bell_(std::move(bell)), thread_([this] { Run(); }) {
  OnFlightFailure(RequestForFailure);
}

FlightDumper::~FlightDumper() {
  OnFlightFailure(nullptr);
  Ring(kStop);
  thread_.join();
  the_bell.store(-1);
}

void FlightDumper::RequestForSignal(int signal) {
  const int error = errno;  // Belongs to the code that the signal interrupts.
  Ring(signal);
  errno = error;
}

void FlightDumper::RequestForFailure() {
  failed_nanos.store(Clock::Real().MonotonicNanos());
  Ring(kFailure);
}

// Lets the thread whose collective has failed write. Gives `why` with what is wanted meanwhile.
int FlightDumper::AwaitOwnRecord(int why) const {
  for (const Deadline deadline = Deadline::After(kOwnRecord);
       why == kFailure && !IsFailureWritten() && !deadline.Expired();) {
    pollfd entry{bell_.get(), POLLIN, 0};
    uint64_t count = 0;
    if (poll(&entry, 1, deadline.PollTimeoutMs()) > 0) {
      [[maybe_unused]] const ssize_t bytes = read(bell_.get(), &count, sizeof(count));
    }
    why |= wanted.exchange(0);
  }
  return why;
}

// The thread whose check failed may hold any lock, even a recorder's. So the dumper's thread
// writes, and this one waits a moment, on a busy host some seconds.
void FlightDumper::DumpInCrash() {
  if (the_bell.load() < 0) {
    return;
  }
  Ring(kCrash);
  for (int i = 0; i < 500 && !crash_dumped.load(); ++i) {
    Clock::Real().Sleep(absl::Milliseconds(10));
  }
}

void FlightDumper::Run() {
  PrepareThread("dtrain-flight", /*low_priority=*/true);
  int why = 0;
  while ((why & kStop) == 0) {
    uint64_t count = 0;
    if (read(bell_.get(), &count, sizeof(count)) < 0 && errno != EINTR) {
      return;
    }
    why = wanted.exchange(0);
    why = AwaitOwnRecord(why);
    std::unique_lock lock(mutex_);  // Somebody may write just now.
    if (IsFailureWritten()) {
      why &= ~kFailure;
    }
    if ((why & ~kStop) == 0) {
      continue;
    }
    const std::string reason = (why & kCrash) != 0     ? "a failed check"
                               : (why & kFailure) != 0 ? "a collective failed"
                                                       : absl::StrCat("signal ", why & 0xff);
    const absl::Status status = DumpLocked(reason);
    lock.unlock();
    if (!status.ok()) {
      DT_LOG(Warning) << "flight record: " << status.message();
    }
    if ((why & kCrash) != 0) {  // It stays so: another dump may follow before the crash looks.
      crash_dumped.store(true);
    }
  }
}

absl::Status FlightDumper::Dump(absl::string_view reason) {
  const std::lock_guard lock(mutex_);
  return DumpLocked(reason);
}

absl::Status FlightDumper::DumpLocked(absl::string_view reason) {
  const int64_t taken_nanos = Clock::Real().MonotonicNanos();
  Json record = FlightRecords();
  if (record["entries"].empty()) {
    return absl::OkStatus();
  }
  record["dtrain"].update(options_.about);
  record["dtrain"]["reason"] = std::string(reason);
  record["dtrain"]["time_ns"] = absl::ToUnixNanos(Clock::Real().WallTime());
  DT_RETURN_IF_ERROR(MakeDirectories(options_.path.substr(0, options_.path.rfind('/'))));
  DT_RETURN_IF_ERROR(WriteFileAtomic(options_.path, DumpJson(record) + "\n"));
  dumped_nanos.store(taken_nanos);
  return absl::OkStatus();
}

}  // namespace dtrain::comm
