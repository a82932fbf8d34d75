// The thread of an NCCL group that finishes Works as the device passes their events, and ends the
// group when NCCL reports an error, a deadline passes, a peer gave up, or someone aborts.
//
// An end first finishes the Works, so that whoever waits goes on and reports, then tells the peers,
// and aborts the communicator last, because ncclCommAbort waits for the device and may not return.
//
// A collective has the configured limit from its call on, because the device may come to it late;
// from the moment at which the device is seen to have begun it the limit is the learnt one
// (CallTimeouts). When either is over, the ranks say for kArrivalGrace whether they are in it.
//
// Thread-safe. The destructor stops the thread; Works still pending then end with Aborted.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "base/deadline.h"
#include "comm/call_timeout.h"
#include "comm/flight_recorder.h"
#include "comm/nccl/cuda_api.h"
#include "comm/nccl/nccl_abort.h"
#include "comm/nccl/nccl_arrivals.h"
#include "comm/nccl/nccl_communicator.h"
#include "comm/nccl/nccl_family.h"
#include "comm/nccl/nccl_peers.h"
#include "comm/nccl/nccl_work.h"

namespace dtrain::comm {

// A collective on the stream.
struct NcclPending {
  std::shared_ptr<NcclWork> work;
  CudaEvent* start = nullptr;
  CudaEvent* end = nullptr;
  uint64_t ticket = 0;                       // Its number in the flight recorder, from 1.
  CallHeader header;                         // The call's header as it is recorded.
  uint64_t sequence = 0;                     // A collective's number: the same on every rank.
  int peer = -1;                             // A send's or receive's other rank.
  std::string what;                          // "all_reduce of 1024 fp32 (sum) \"bucket 3\"".
  absl::Duration timeout;                    // The configured one, or the call's; it runs
  Deadline deadline = Deadline::Infinite();  // from the call on.
  bool learns = true;                        // Once it has begun, its limit is the learnt one.
  // Copied when the call is done. Both are null, or neither.
  const double* sum_from = nullptr;
  double* sum_to = nullptr;
};

struct NcclWatchdogOptions {
  CudaApi* cuda = nullptr;
  std::shared_ptr<NcclCommunicator> communicator;
  std::shared_ptr<NcclFamily> family;  // The groups that end with this one.
  std::shared_ptr<FlightRecorder> recorder;
  int device = 0;
  std::string group;  // "NCCL group world epoch 0, rank 1 of 2": starts each report.
  // Between questions to the device: while somebody waits for a Work, and otherwise. Each takes
  // locks of the driver that threads which launch kernels need as well.
  absl::Duration waited_poll_interval = absl::Microseconds(100);
  absl::Duration poll_interval = absl::Milliseconds(1);
  absl::Duration error_interval = absl::Milliseconds(20);  // Between questions to NCCL.
  absl::Duration peer_interval = absl::Milliseconds(400);  // Between looks for what peers say.
  absl::Duration abort_bound = kAbortBound;                // See AbortOrEndProcess.
  TimeoutLimits timeouts;
};

// How long the others have to say that they are in a collective whose time is over: more than twice
// peer_interval.
inline constexpr absl::Duration kArrivalGrace = absl::Seconds(1);

class NcclWatchdog {
 public:
  NcclWatchdog(NcclWatchdogOptions options, NcclArrivals arrivals);
  NcclWatchdog(const NcclWatchdog&) = delete;
  NcclWatchdog& operator=(const NcclWatchdog&) = delete;
  ~NcclWatchdog();

  // Watches `pending` from now on, or finishes it at once when the group is broken.
  void Watch(NcclPending pending);
  // OK, or Aborted with the reason why the group is broken.
  absl::Status health() const;
  // Breaks the group; the thread does the rest. Never blocks.
  void Abort(const std::string& reason);
  // Blocks until at most `most` collectives are pending, and gives health(). DeadlineExceeded: more
  // are pending.
  absl::Status Drain(size_t most, Deadline deadline);
  // Counted by the Works that are watched.
  const std::shared_ptr<NcclWaiters>& waiters() const { return waiters_; }
  // A pair of events for the next collective, used again after it. REQUIRES: the calling thread's
  // CUDA device is the group's.
  absl::Status TakeEvents(CudaEvent** start, CudaEvent** end);
  void ReturnEvents(CudaEvent* start, CudaEvent* end);

 private:
  void Run();
  bool FinishHead();                           // False: nothing finished.
  absl::Status Examine();                      // Not OK: the group must end with it.
  absl::Status Late(const NcclPending& head);  // The report of a passed deadline.
  void NoteStart(const NcclPending& head);     // If the device has come to it.
  bool Started(const NcclPending& head) const { return started_ == head.ticket; }
  absl::Status ExamineTime(const NcclPending& head);
  absl::Status HealthLocked() const;  // REQUIRES: mutex_ held.
  const NcclPending* Head() const;    // Null when nothing is pending. Of the thread alone.
  void Break(const absl::Status& status);
  // Tells whoever waits, and the records.
  void Finish(const NcclPending& pending, const absl::Status& status, int64_t nanos);

  const NcclWatchdogOptions options_;
  NcclPeers peers_;
  const std::shared_ptr<NcclWaiters> waiters_ = std::make_shared<NcclWaiters>(0);
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<NcclPending> pending_;  // Only the thread removes, so the first one stays in place.
  std::deque<std::pair<CudaEvent*, CudaEvent*>> free_events_;
  absl::Status health_;
  std::string abort_reason_;  // The abort was asked for and is not done yet.
  bool abort_asked_ = false;
  bool stop_ = false;
  // Only the watchdog's thread uses these.
  absl::Status device_error_;
  CallTimeouts timeouts_;
  uint64_t started_ = 0;  // The ticket of what the device is seen to be in,
  uint64_t asked_ = 0;    // and the ticket that was asked about.
  absl::Duration limit_;  // The limit of the one begun,
  Deadline limit_deadline_ = Deadline::Infinite();  // from then on.
  Deadline grace_ = Deadline::Infinite();           // The time that peers have to answer.
  Deadline next_error_look_ = Deadline::Infinite();
  std::thread thread_;
};

}  // namespace dtrain::comm
