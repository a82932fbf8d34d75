// The last calls of a group on this rank, for diagnosis after a hang or a crash.
//
// Thread-safe. Memory is fixed: the oldest entry is overwritten. The process lists all recorders,
// so that one file holds the calls of all groups (FlightRecords); groups own them.
//
// Records have the keys of PyTorch's flight recorder, version "2.10", so that its analyser
// (torch.distributed.flight_recorder) reads them; keys that it does not know are under "dtrain". It
// requires two values: every name starts with "nccl:", whatever the transport, and a barrier and a
// registration are called all_reduce_barrier.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/agent_channel.h"
#include "base/clock.h"
#include "base/json.h"
#include "comm/call.h"

namespace dtrain::comm {

// The group and rank whose calls a recorder holds.
struct FlightGroup {
  std::string name = "world";
  int rank = 0;  // In the group.
  int size = 1;
  std::vector<int> world_ranks = {};  // World ranks of the members; empty: 0 to size - 1.
  uint64_t epoch = 0;
  std::string transport = {};
};

// The facts of a call that a recorder keeps.
struct FlightCall {
  CallHeader header;
  uint64_t input_bytes = 0;
  uint64_t output_bytes = 0;
  int peer = -1;
};

class FlightRecorder {
 public:
  static constexpr size_t kCapacity = 1000;

  static std::shared_ptr<FlightRecorder> Create(FlightGroup group, Clock& clock = Clock::Real());

  // A call was queued; gives its ticket.
  uint64_t Queued(const FlightCall& call);
  void Started(uint64_t ticket, absl::Duration timeout);
  // An error is reported to OnFailure.
  void Ended(uint64_t ticket, const absl::Status& status);
  // Leaves the group out of ProgressOfGroups (Group::SetBeside).
  void SetBeside() { beside_ = true; }
  bool is_beside() const { return beside_; }
  // Notes that the group is broken, whether or not a call of this rank was under way. Reported to
  // OnFailure like an error.
  void SetBroken(const absl::Status& reason);

  const FlightGroup& group() const { return group_; }
  std::string broken() const;  // The reason given to SetBroken; else empty.
  // The calls, oldest first, as the "entries" of the format.
  Json Entries() const;
  // {"world": {"name", "desc", "ranks"}} and {"world": {"last_enqueued_collective", ...}}.
  Json GroupConfig() const;
  Json GroupStatus() const;
  // How far this rank is in the collectives of the group.
  GroupProgress Progress() const;

 private:
  struct Entry {
    uint64_t ticket = 0;
    uint64_t record_id = 0;  // Number of the record among those of all recorders of the process.
    FlightCall call;
    uint64_t message = 0;  // Number of a send or receive.
    int64_t queued_nanos = 0;
    int64_t started_nanos = 0;
    int64_t ended_nanos = 0;
    int64_t timeout_ms = 0;
    std::string error;
  };

  FlightRecorder(FlightGroup group, Clock& clock);
  Entry* Find(uint64_t ticket);
  Json ToJson(const Entry& entry) const;
  // Wall-clock nanoseconds of a monotonic time; null for 0.
  Json WallNanos(int64_t nanos) const;

  const FlightGroup group_;
  Clock& clock_;
  const int64_t wall_offset_nanos_;
  std::atomic<bool> beside_{false};
  mutable std::mutex mutex_;
  uint64_t next_ = 1;
  uint64_t messages_ = 0;
  uint64_t last_queued_ = 0;  // Sequence numbers.
  uint64_t last_started_ = 0;
  uint64_t last_completed_ = 0;
  CallHeader last_header_;  // The collective `last_started_`.
  std::string broken_;
  std::vector<Entry> entries_ = std::vector<Entry>(kCapacity);
};

// One record of all recorders of this process: version, pg_config, pg_status, entries in the order
// of the calls, and "dtrain": {"version": 1, "groups": [...]}. Any thread.
Json FlightRecords();
// The same of one recorder.
Json FlightRecords(const FlightRecorder& recorder);

// The progress of all groups of this process that have entered a collective and do not run beside
// training, those that are in a collective first. Any thread.
std::vector<GroupProgress> ProgressOfGroups();

// `tell` is called after a call of any recorder ended with an error, in its thread; it must not
// block. Null: none is called.
void OnFlightFailure(void (*tell)());

}  // namespace dtrain::comm
