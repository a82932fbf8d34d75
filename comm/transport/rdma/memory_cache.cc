#include "comm/transport/rdma/memory_cache.h"

#include <unistd.h>

#include <utility>

#include "base/log.h"
#include "base/status.h"

namespace dtrain::comm {
namespace {

MemoryRange RangeOf(const void* data, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  return {begin, begin + bytes};
}

MemoryRange WholePages(const MemoryRange& range) {
  static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  return {range.begin / page * page, (range.end + page - 1) / page * page};
}

}  // namespace

class MemoryCache::Handle final : public RegisteredMemory {
 public:
  explicit Handle(std::shared_ptr<std::atomic<bool>> held) : held_(std::move(held)) {}
  ~Handle() override { held_->store(false); }  // The region is dropped at the next Move.

 private:
  const std::shared_ptr<std::atomic<bool>> held_;
};

MemoryCache::MemoryCache(VerbsDevice& device, std::unique_ptr<UnmapWatch> watch, size_t bytes_max)
    : device_(device), watch_(std::move(watch)), bytes_max_(bytes_max) {}

absl::StatusOr<std::unique_ptr<RegisteredMemory>> MemoryCache::Register(void* data, size_t bytes) {
  ForgetWhatIsGone();
  DT_ASSIGN_OR_RETURN(auto region, device_.Register(data, bytes));
  auto held = std::make_shared<std::atomic<bool>>(true);
  entries_.push_front({RangeOf(data, bytes), std::move(region), held, move_});
  return std::make_unique<Handle>(std::move(held));
}

void MemoryCache::NextMove() {
  ++move_;
  ForgetWhatIsGone();
}

std::list<MemoryCache::Entry>::iterator MemoryCache::Drop(std::list<Entry>::iterator entry) {
  if (entry->held == nullptr) {
    kept_bytes_ -= entry->range.end - entry->range.begin;
  }
  return entries_.erase(entry);
}

void MemoryCache::ForgetWhatIsGone() {
  for (auto it = entries_.begin(); it != entries_.end();) {
    it = it->held != nullptr && !it->held->load() ? Drop(it) : std::next(it);
  }
  if (watch_ == nullptr) {
    return;
  }
  watch_->Take([this](const MemoryRange& gone) {
    for (auto it = entries_.begin(); it != entries_.end();) {
      it = it->held == nullptr && it->range.Overlaps(gone) ? Drop(it) : std::next(it);
    }
  });
}

const MemoryRegion* MemoryCache::Find(const void* data, size_t bytes) {
  const MemoryRange range = RangeOf(data, bytes);
  for (auto it = entries_.begin(); it != entries_.end(); ++it) {
    if (it->range.Holds(range)) {
      it->last_move = move_;
      entries_.splice(entries_.begin(), entries_, it);
      return it->region.get();
    }
  }
  return watch_ == nullptr || !may_pin_ ? nullptr : Make(WholePages(range));
}

bool MemoryCache::MakeRoom(size_t bytes) {
  for (auto it = entries_.end(); kept_bytes_ + bytes > bytes_max_ && it != entries_.begin();) {
    --it;
    if (it->held == nullptr && it->last_move < move_) {
      it = Drop(it);
    }
  }
  return kept_bytes_ + bytes <= bytes_max_;
}

const MemoryRegion* MemoryCache::Make(const MemoryRange& range) {
  const size_t bytes = range.end - range.begin;
  if (!MakeRoom(bytes) || !watch_->Watch(range)) {
    return nullptr;
  }
  auto region = device_.Register(reinterpret_cast<void*>(range.begin), bytes);
  if (!region.ok()) {
    may_pin_ = !absl::IsResourceExhausted(region.status());
    if (!may_pin_) {
      DT_LOG(Warning) << "long messages are copied: " << region.status().message();
    }
    return nullptr;
  }
  ++made_;
  kept_bytes_ += bytes;
  entries_.push_front({range, *std::move(region), nullptr, move_});
  return entries_.front().region.get();
}

}  // namespace dtrain::comm
