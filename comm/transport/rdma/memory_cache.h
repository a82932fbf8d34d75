// Which memory of this process the device can reach: what callers registered, and what messages
// used before.
//
// Registering pins pages, which costs more than copying a short message. So the regions of memory
// that is sent or received again and again are kept, up to a number of bytes, the least recently
// used going first; and only while it is known that the memory is still the same (UnmapWatch).
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
  // `watch` null: nothing is kept that was not registered. REQUIRES: `device` outlives this object.
  MemoryCache(VerbsDevice& device, std::unique_ptr<UnmapWatch> watch, size_t bytes_max);

  // The memory is reachable until the result is dropped, before which it must not be freed.
  // ResourceExhausted: it cannot be pinned.
  absl::StatusOr<std::unique_ptr<RegisteredMemory>> Register(void* data, size_t bytes);

  // Messages that find regions from now on are later than those before: regions of those may go.
  void NextMove();
  // The region that holds all of the memory, until NextMove; null: there is none and none can be
  // made.
  const MemoryRegion* Find(const void* data, size_t bytes);

  size_t kept_bytes() const { return kept_bytes_; }
  size_t made() const { return made_; }  // Regions, by Find.

 private:
  struct Entry {
    MemoryRange range;
    std::unique_ptr<MemoryRegion> region;
    // Of one that a caller registered: whether it still holds it. Null: found by itself.
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
