// The thread of an NCCL group that finishes Works as the device passes their events, and ends the
// group when NCCL reports an error, a deadline passes, a peer gave up, or someone aborts.
//
// To end the group, the thread first finishes the Works, so that threads that wait for them go on
// and report. It then tells the peers. It aborts the communicator last, because ncclCommAbort waits
// for the device and may not return.
//
// From its call on a collective has the configured limit, because the device may come to it late.
// Once the device is seen to have begun it, the limit is the learnt one (CallTimeouts). When either
// is over, the ranks have kArrivalGrace to say whether they are in the collective.
//
// Thread-safe. The destructor stops the thread; Works that are pending then end with Aborted.
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
  uint64_t ticket = 0;    // The call's number in the flight recorder, from 1.
  CallHeader header;      // The call's header as it is recorded.
  uint64_t sequence = 0;  // The number of a collective, which is the same on every rank.
  int peer = -1;          // The other rank of a send or receive.
  std::string what;       // "all_reduce of 1024 fp32 (sum) \"bucket 3\"".
  // The configured limit, or the call's own, and the time at which it is over. It runs from the
  // call on.
  absl::Duration timeout;
  Deadline deadline = Deadline::Infinite();
  bool learns = true;  // Once the device has begun the call, its limit is the learnt one.
  // When the call is done, the sum of squares is copied from the first to the second. Both are
  // null, or neither.
  const double* sum_from = nullptr;
  double* sum_to = nullptr;
};

struct NcclWatchdogOptions {
  CudaApi* cuda = nullptr;
  std::shared_ptr<NcclCommunicator> communicator;
  std::shared_ptr<NcclFamily> family;  // The groups that end with this one.
  std::shared_ptr<FlightRecorder> recorder;
  int device = 0;
  std::string group;  // "NCCL group world epoch 0, rank 1 of 2", with which each report begins.
  // The time between two questions to the device, while a thread waits for a Work and otherwise. A
  // question takes locks of the driver, which threads that launch kernels need as well.
  absl::Duration waited_poll_interval = absl::Microseconds(100);
  absl::Duration poll_interval = absl::Milliseconds(1);
  absl::Duration error_interval = absl::Milliseconds(20);  // The time between questions to NCCL.
  absl::Duration peer_interval = absl::Milliseconds(400);  // The time between polls of the store.
  absl::Duration abort_bound = kAbortBound;                // See AbortOrEndProcess.
  TimeoutLimits timeouts;
};

// How long the other ranks have to say that they are in a collective whose time is over. This is
// more than twice peer_interval.
inline constexpr absl::Duration kArrivalGrace = absl::Seconds(1);

class NcclWatchdog {
 public:
  NcclWatchdog(NcclWatchdogOptions options, NcclArrivals arrivals);
  NcclWatchdog(const NcclWatchdog&) = delete;
  NcclWatchdog& operator=(const NcclWatchdog&) = delete;
  ~NcclWatchdog();

  // Watches `pending` from now on, or finishes it at once if the group is broken.
  void Watch(NcclPending pending);
  // OK, or Aborted with the reason why the group is broken.
  absl::Status health() const;
  const TimeoutLimits& limits() const { return options_.timeouts; }
  // Asks the thread to break the group. Never blocks.
  void Abort(const std::string& reason);
  // Blocks until at most `most` collectives are pending, and gives health(). DeadlineExceeded if
  // more are still pending at `deadline`.
  absl::Status Drain(size_t most, Deadline deadline);
  // The Works that are watched count the threads that wait for them here.
  const std::shared_ptr<NcclWaiters>& waiters() const { return waiters_; }
  // Gives a pair of events for the next collective, which others use again after it. REQUIRES: the
  // calling thread's CUDA device is the group's.
  absl::Status TakeEvents(CudaEvent** start, CudaEvent** end);
  void ReturnEvents(CudaEvent* start, CudaEvent* end);

 private:
  void Run();
  // Finishes the first pending call if it is done; false if it is not.
  bool FinishHead();
  // Not OK: the group must end with this error.
  absl::Status Examine();
  absl::Status ExamineTime(const NcclPending& head);
  // The report of a call whose time is over.
  absl::Status TimeoutError(const NcclPending& head);
  // Notes it if the device has begun the call.
  void NoteStart(const NcclPending& head);
  bool Started(const NcclPending& head) const { return started_ == head.ticket; }
  absl::Status HealthLocked() const;  // REQUIRES: mutex_ held.
  // The first pending call; null if there is none. REQUIRES: the watchdog's thread calls.
  const NcclPending* Head() const;
  void Break(const absl::Status& status);
  // Ends the Work of `pending` and its record.
  void Finish(const NcclPending& pending, const absl::Status& status, int64_t nanos);

  const NcclWatchdogOptions options_;
  NcclPeers peers_;
  const std::shared_ptr<NcclWaiters> waiters_ = std::make_shared<NcclWaiters>(0);
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Only the thread removes calls, so that the first one stays where it is.
  std::deque<NcclPending> pending_;
  std::deque<std::pair<CudaEvent*, CudaEvent*>> free_events_;
  absl::Status health_;
  bool abort_asked_ = false;
  std::string abort_reason_;
  bool stop_ = false;
  // Only the watchdog's thread uses these.
  absl::Status device_error_;
  CallTimeouts timeouts_;
  uint64_t started_ = 0;  // The ticket of the last call that the device was seen to have begun.
  uint64_t asked_ = 0;    // The ticket of the last call about which the peers were asked.
  // The learnt limit of the call that has begun, and the time at which it is over.
  absl::Duration limit_;
  Deadline limit_deadline_ = Deadline::Infinite();
  Deadline grace_ = Deadline::Infinite();  // Until then the peers may answer.
  Deadline next_error_poll_ = Deadline::Infinite();
  std::thread thread_;
};

}  // namespace dtrain::comm
