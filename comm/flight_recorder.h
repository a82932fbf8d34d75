// The last calls of a group on this rank, for diagnosis after a hang or a crash.
//
// Thread-safe. Fixed memory: the oldest entry is overwritten.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/json.h"
#include "comm/call.h"

namespace dtrain::comm {

class FlightRecorder {
 public:
  static constexpr size_t kCapacity = 1000;

  // A call was queued; gives its ticket.
  uint64_t Queued(const CallHeader& header, int peer);
  void Started(uint64_t ticket);
  void Ended(uint64_t ticket, const absl::Status& status);

  // {"version":1,"calls":[{"ticket","sequence","call","bytes","peer","state","queued_s",
  // "started_s","ended_s","error"}...]}, oldest first; seconds are of the monotonic clock, null
  // when not yet.
  Json Dump() const;

 private:
  struct Entry {
    uint64_t ticket = 0;
    CallHeader header;
    int peer = -1;
    int64_t queued_nanos = 0;
    int64_t started_nanos = 0;
    int64_t ended_nanos = 0;
    std::string error;
  };
  Entry* Find(uint64_t ticket);

  mutable std::mutex mutex_;
  uint64_t next_ = 1;
  std::vector<Entry> entries_ = std::vector<Entry>(kCapacity);
};

}  // namespace dtrain::comm
