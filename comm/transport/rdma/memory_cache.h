// The memory of this process that the device can reach: regions that callers registered, and
// regions that earlier messages used.
//
// Registering pins pages, which costs more than copying a short message. So regions that messages
// use are kept for later messages, up to a number of bytes; the least recently used go first. A
// region is kept only while the memory is known to be still the same (UnmapWatch).
// Used by the thread that moves messages; only a Registration may be dropped by any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>

#include "absl/status/statusor.h"
#include "comm/transport/rdma/unmap_watch.h"
#include "comm/transport/rdma/verbs_api.h"
#include "comm/transport/transport.h"

namespace dtrain::comm {

class MemoryCache {
 public:
  // `watch` null: only regions that callers registered are kept. REQUIRES: `device` outlives this
  // object.
  MemoryCache(VerbsDevice& device, std::unique_ptr<UnmapWatch> watch, size_t bytes_max);

  // The memory is reachable until the result is dropped, before which it must not be freed.
  // ResourceExhausted: it cannot be pinned.
  absl::StatusOr<std::unique_ptr<RegisteredMemory>> Register(void* data, size_t bytes);

  // Begins a new Move: regions that only earlier ones used may be dropped.
  void NextMove();
  // The region that holds all of the memory, until NextMove; null: there is none and none can be
  // made.
  const MemoryRegion* Find(const void* data, size_t bytes);

  size_t kept_bytes() const { return kept_bytes_; }
  size_t made() const { return made_; }  // Number of regions that Find has made.

 private:
  struct Entry {
    MemoryRange range;
    std::unique_ptr<MemoryRegion> region;
    // Whether the caller that registered the region still holds it. Null: Find made the region.
    std::shared_ptr<std::atomic<bool>> held;
    uint64_t last_move = 0;
  };
  class Handle;

  const MemoryRegion* Make(const MemoryRange& range);
  void ForgetWhatIsGone();
  bool MakeRoom(size_t bytes);
  std::list<Entry>::iterator Drop(std::list<Entry>::iterator entry);

  VerbsDevice& device_;
  const std::unique_ptr<UnmapWatch> watch_;
  const size_t bytes_max_;
  std::list<Entry> entries_;  // The most recently used first.
  size_t kept_bytes_ = 0;
  size_t made_ = 0;
  uint64_t move_ = 0;
  bool may_pin_ = true;  // No registration by Find has failed.
};

}  // namespace dtrain::comm
