// Tells when memory that a device was given is taken out of this process: unmapped, moved, or its
// pages thrown away. A device goes on writing to the old pages then, so the owner of a region for
// memory that is not its own must know. A thread of its own notes the events; one thread at a time
// calls Watch and Take.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace dtrain::comm {

struct MemoryRange {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  bool Overlaps(const MemoryRange& other) const { return begin < other.end && other.begin < end; }
  bool Holds(const MemoryRange& other) const { return begin <= other.begin && other.end <= end; }
};

class UnmapWatch {
 public:
  virtual ~UnmapWatch() = default;
  // From now on Take reports parts of the range, in whole pages, that are taken away. False: it
  // cannot be watched.
  virtual bool Watch(const MemoryRange& range) = 0;
  // Calls `gone` for the memory taken away since the last call: every range whose munmap, mremap,
  // madvise or free has returned. One thread at a time.
  virtual void Take(absl::FunctionRef<void(const MemoryRange& range)> gone) = 0;
};

// The watch by userfaultfd(2), which holds up a call that takes watched memory away until a thread
// has noted it. That thread touches no memory but its own ranges: it takes no lock and frees
// nothing, since any free may be such a call. Unimplemented: the kernel or a sandbox refuses.
class UserfaultWatch final : public UnmapWatch {
 public:
  static absl::StatusOr<std::unique_ptr<UnmapWatch>> Create();
  ~UserfaultWatch() override;
  bool Watch(const MemoryRange& range) override;
  void Take(absl::FunctionRef<void(const MemoryRange& range)> gone) override;

 private:
  // Ranges that are noted and not taken; if there are more, all memory counts as gone.
  static constexpr size_t kRangesMax = 1024;

  UserfaultWatch(UniqueFd events, UniqueFd stop);
  void Run();
  void Note(const MemoryRange& range);

  const UniqueFd events_;
  const UniqueFd stop_;
  std::atomic<bool> noting_{false};  // An event is being read: its caller may have gone on already.
  std::array<MemoryRange, kRangesMax> ranges_ = {};
  std::atomic<uint64_t> noted_{0};
  std::atomic<uint64_t> taken_{0};
  std::atomic<bool> too_many_{false};
  std::thread thread_;
};

}  // namespace dtrain::comm
