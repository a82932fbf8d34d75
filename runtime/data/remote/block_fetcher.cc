#include "runtime/data/remote/block_fetcher.h"

#include <algorithm>
#include <cstring>

#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/log.h"
#include "base/status.h"
#include "base/threads/worker.h"

namespace dtrain::remote {
namespace {

// How long a block is left to another process of the host before it is fetched twice.
constexpr absl::Duration kOtherProcess = absl::Seconds(20);

}  // namespace

BlockFetcher::BlockFetcher(FetcherOptions options, std::unique_ptr<BlockFolder> folder, Fetch fetch)
    : options_(options),
      folder_(std::move(folder)),
      fetch_(std::move(fetch)),
      folder_works_(folder_ != nullptr) {
  for (int i = 0; i < options_.threads; ++i) {
    threads_.emplace_back([this] { FetchAhead(); });
  }
}

BlockFetcher::~BlockFetcher() {
  Cancel();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

void BlockFetcher::Cancel() {
  const std::lock_guard lock(mutex_);
  stop_ = true;
  changed_.notify_all();
  if (folder_ != nullptr) {
    folder_->StopWaiting();
  }
}

int64_t BlockFetcher::AheadBytesMax(const BlockId& id) const {
  BlockFolder* const kept_in = folder();
  const int64_t share = kept_in == nullptr
                            ? options_.memory_bytes_max / 2
                            : std::min(options_.ahead_bytes_max,
                                       kept_in->bytes_max() / (4 * int64_t{options_.processes}));
  return std::max(share, id.bytes);  // One block always may be.
}

BlockFetcher::Memory::iterator BlockFetcher::InMemory(const BlockId& id) {
  return std::find_if(memory_.begin(), memory_.end(),
                      [&](const auto& entry) { return entry.first == id; });
}

absl::Status BlockFetcher::ReadKept(const BlockId& id, int64_t offset, absl::Span<std::byte> into) {
  {
    const std::lock_guard lock(mutex_);
    const auto kept = InMemory(id);
    if (kept != memory_.end()) {
      std::memcpy(into.data(), kept->second.get() + offset, into.size());
      std::rotate(kept, kept + 1, memory_.end());
      return absl::OkStatus();
    }
  }
  // Blocks that it has are read also when its disk is full.
  return folder_ != nullptr ? folder_->Read(id, offset, into) : absl::NotFoundError("no folder");
}

absl::Status BlockFetcher::Read(const BlockId& id, int64_t offset, absl::Span<std::byte> into) {
  while (true) {
    if (const absl::Status kept = ReadKept(id, offset, into); !absl::IsNotFound(kept)) {
      const std::lock_guard lock(mutex_);
      ahead_.erase(id);
      changed_.notify_all();
      return kept;
    }
    std::unique_lock lock(mutex_);
    seen_.erase(id);
    ahead_.erase(id);
    if (InMemory(id) != memory_.end()) {
      continue;  // Its flight landed since the look above.
    }
    const auto [at, is_mine] = flights_.try_emplace(id, std::make_shared<Flight>());
    if (is_mine) {
      wanted_.erase(std::remove(wanted_.begin(), wanted_.end(), id), wanted_.end());
      lock.unlock();
      const absl::StatusOr<Bytes> block = FetchAndKeep(id);
      if (block.ok()) {
        std::memcpy(into.data(), block->get() + offset, into.size());
      }
      return block.status();
    }
    const std::shared_ptr<Flight> flight = at->second;
    changed_.wait(lock, [&] { return flight->done; });
    if (!flight->status.ok()) {
      return flight->status;
    }
  }
}

bool BlockFetcher::WillRead(const BlockId& id) {
  {
    const std::lock_guard lock(mutex_);
    if (ahead_.contains(id) || seen_.contains(id)) {
      return true;
    }
    if (static_cast<int64_t>(ahead_.size() + 1) * id.bytes > AheadBytesMax(id)) {
      return false;
    }
    if (InMemory(id) != memory_.end() || flights_.contains(id)) {
      return true;
    }
  }
  const bool is_there = folder_ != nullptr && folder_->Has(id);
  const std::lock_guard lock(mutex_);
  if (is_there) {
    if (seen_.size() >= options_.seen_max) {
      seen_.clear();  // The next time, the folder is looked into again.
    }
    seen_.insert(id);
    return true;
  }
  if (ahead_.insert(id).second) {
    wanted_.push_back(id);
    changed_.notify_all();
  }
  return true;
}

void BlockFetcher::ForgetAhead() {
  const std::lock_guard lock(mutex_);
  wanted_.clear();
  ahead_.clear();
}

void BlockFetcher::FetchAhead() {
  PrepareThread("dt-fetch", /*low_priority=*/true);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !wanted_.empty(); });
    if (stop_) {
      return;
    }
    const BlockId id = wanted_.front();
    wanted_.pop_front();
    if (InMemory(id) != memory_.end() ||
        !flights_.try_emplace(id, std::make_shared<Flight>()).second) {
      continue;
    }
    lock.unlock();
    // The reader meets the error again, if it lasts.
    const absl::Status status = FetchAndKeep(id).status();
    lock.lock();
    if (!status.ok()) {
      ahead_.erase(id);
    }
  }
}

absl::StatusOr<BlockFetcher::Bytes> BlockFetcher::FetchAndKeep(const BlockId& id) {
  const auto bytes = static_cast<size_t>(id.bytes);
  auto block = std::make_shared_for_overwrite<std::byte[]>(bytes);
  const absl::Span<std::byte> span(block.get(), bytes);
  BlockFolder* const kept_in = folder();
  const UniqueFd alone =
      kept_in != nullptr ? kept_in->Lock(id, Deadline::After(kOtherProcess)) : UniqueFd();
  if (folder_ != nullptr && folder_->Read(id, 0, span).ok()) {  // Another process was there first.
    Land(id, absl::OkStatus());
    return Bytes(std::move(block));
  }
  const absl::Status status =
      IsCancelled() ? absl::CancelledError("the reader of remote data ends") : fetch_(id, span);
  if (status.ok()) {
    Keep(id, block);
  }
  Land(id, status);
  if (!status.ok()) {
    return status;
  }
  return Bytes(std::move(block));
}

void BlockFetcher::Keep(const BlockId& id, const Bytes& block) {
  if (BlockFolder* const kept_in = folder(); kept_in != nullptr) {
    const absl::Status kept = kept_in->Keep(id, {block.get(), static_cast<size_t>(id.bytes)});
    if (kept.ok()) {
      return;
    }
    if (folder_works_.exchange(false)) {
      DT_LOG(Warning) << "data.cache_dir " << kept_in->folder()
                      << " takes no more blocks, so blocks are fetched each time that they are "
                         "read: "
                      << kept.message() << "; make room there or name another folder, and start "
                      << "again, to keep them";
    }
  }
  KeepInMemory(id, block);
}

void BlockFetcher::KeepInMemory(const BlockId& id, const Bytes& block) {
  const std::lock_guard lock(mutex_);
  int64_t sum = id.bytes;
  for (const auto& [other, bytes] : memory_) {
    sum += other.bytes;
  }
  while (!memory_.empty() && sum > options_.memory_bytes_max) {
    sum -= memory_.front().first.bytes;
    memory_.pop_front();
  }
  memory_.emplace_back(id, block);
}

void BlockFetcher::Land(const BlockId& id, const absl::Status& status) {
  const std::lock_guard lock(mutex_);
  const auto flight = flights_.find(id);
  flight->second->done = true;
  flight->second->status = status;
  flights_.erase(flight);
  changed_.notify_all();
}

}  // namespace dtrain::remote
