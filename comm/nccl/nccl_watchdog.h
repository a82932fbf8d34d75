// The one thread of an NCCL group: it finishes Works as the device passes their events, and ends
// the group when NCCL reports an error, a deadline passes, a peer gave up, or someone aborts.
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
#include "comm/nccl/nccl_arrivals.h"
#include "comm/nccl/nccl_communicator.h"
#include "comm/nccl/nccl_work.h"

namespace dtrain::comm {

// A collective on the stream.
struct NcclPending {
  std::shared_ptr<NcclWork> work;
  CudaEvent* start = nullptr;
  CudaEvent* end = nullptr;
  uint64_t ticket = 0;                       // In the flight recorder; from 1.
  CallHeader header;                         // As it is recorded.
  uint64_t sequence = 0;                     // Of collectives: the same on every rank.
  int peer = -1;                             // Of a send or receive, which only two ranks know of.
  std::string what;                          // "all_reduce of 1024 fp32 (sum) \"bucket 3\"".
  absl::Duration timeout;                    // As configured or given with the call,
  Deadline deadline = Deadline::Infinite();  // from the call on.
  bool learns = true;                        // Its limit once begun is the learnt one.
  // Copied when it is done, both null or neither.
  const double* sum_from = nullptr;
  double* sum_to = nullptr;
};

struct NcclWatchdogOptions {
  CudaApi* cuda = nullptr;
  NcclCommunicator* communicator = nullptr;
  std::shared_ptr<FlightRecorder> recorder;
  int device = 0;
  std::string group;  // "NCCL group world epoch 0, rank 1 of 2": starts each report.
  absl::Duration poll_interval = absl::Microseconds(100);
  absl::Duration error_interval = absl::Milliseconds(20);  // Between questions to NCCL.
  absl::Duration peer_interval = absl::Milliseconds(400);  // Between looks for what peers say.
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
  // Collectives that are not finished.
  size_t pending() const;
  // Blocks until at most `most` collectives are pending. DeadlineExceeded otherwise.
  absl::Status Drain(size_t most, Deadline deadline);
  // A pair of events for the next collective, used again after it.
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
  void Announce(const NcclPending& head);  // If the device is in it.
  void AnnounceFinished(const NcclArrivals::Sight& sight);
  // Until a collective comes, or for peer_interval: then answers who asks. Holds the lock.
  void AwaitNext(std::unique_lock<std::mutex>& lock);
  void Break(const absl::Status& status);
  // Tells whoever waits, and the records.
  void Finish(const NcclPending& pending, const absl::Status& status, int64_t nanos);

  const NcclWatchdogOptions options_;
  NcclArrivals arrivals_;  // Of the thread.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<NcclPending> pending_;
  std::deque<std::pair<CudaEvent*, CudaEvent*>> free_events_;
  absl::Status health_;
  std::string abort_reason_;  // Asked for, not yet done.
  bool abort_asked_ = false;
  bool stop_ = false;
  // Of the thread alone:
  absl::Status device_error_;
  CallTimeouts timeouts_;
  uint64_t finished_ = 0;                           // Collectives that are through.
  uint64_t started_ = 0;                            // Tickets: of what the device is seen to be in,
  uint64_t asked_ = 0;                              // and of what was asked about.
  absl::Duration limit_;                            // Of the one begun,
  Deadline limit_deadline_ = Deadline::Infinite();  // from then on.
  Deadline grace_ = Deadline::Infinite();           // For answers.
  Deadline next_error_look_ = Deadline::Infinite();
  Deadline next_peer_look_ = Deadline::Infinite();
  std::thread thread_;
};

}  // namespace dtrain::comm
