#include "comm/flight_recorder.h"

#include "base/clock.h"

namespace dtrain::comm {

uint64_t FlightRecorder::Queued(const CallHeader& header, int peer) {
  const std::lock_guard lock(mutex_);
  const uint64_t ticket = next_++;
  Entry& entry = entries_[ticket % kCapacity];
  entry.ticket = ticket;
  entry.header = header;
  entry.peer = peer;
  entry.queued_nanos = Clock::Real().MonotonicNanos();
  entry.started_nanos = 0;
  entry.ended_nanos = 0;
  entry.error.clear();
  return ticket;
}

FlightRecorder::Entry* FlightRecorder::Find(uint64_t ticket) {
  Entry& entry = entries_[ticket % kCapacity];
  return entry.ticket == ticket ? &entry : nullptr;  // Null: overwritten since.
}

void FlightRecorder::Started(uint64_t ticket) {
  const std::lock_guard lock(mutex_);
  if (Entry* entry = Find(ticket)) {
    entry->started_nanos = Clock::Real().MonotonicNanos();
  }
}

void FlightRecorder::Ended(uint64_t ticket, const absl::Status& status) {
  const std::lock_guard lock(mutex_);
  if (Entry* entry = Find(ticket)) {
    entry->ended_nanos = Clock::Real().MonotonicNanos();
    if (!status.ok()) {
      entry->error = status.ToString();
    }
  }
}

Json FlightRecorder::Dump() const {
  const std::lock_guard lock(mutex_);
  const auto seconds = [](int64_t nanos) {
    return nanos == 0 ? Json(nullptr) : Json(static_cast<double>(nanos) * 1e-9);
  };
  Json calls = Json::array();
  for (uint64_t ticket = next_ > kCapacity ? next_ - kCapacity : 1; ticket < next_; ++ticket) {
    const Entry& entry = entries_[ticket % kCapacity];
    const char* const state = !entry.error.empty()       ? "failed"
                              : entry.ended_nanos != 0   ? "done"
                              : entry.started_nanos != 0 ? "running"
                                                         : "queued";
    calls.push_back({{"ticket", entry.ticket},
                     {"sequence", entry.header.sequence},
                     {"call", Describe(entry.header)},
                     {"bytes", entry.header.bytes},
                     {"peer", entry.peer},
                     {"state", state},
                     {"queued_s", seconds(entry.queued_nanos)},
                     {"started_s", seconds(entry.started_nanos)},
                     {"ended_s", seconds(entry.ended_nanos)},
                     {"error", entry.error.empty() ? Json(nullptr) : Json(entry.error)}});
  }
  return {{"version", 1}, {"calls", std::move(calls)}};
}

}  // namespace dtrain::comm
