#include "checkpoint/storage/block_reader.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "base/threads/work_count.h"
#include "checkpoint/format/checksum.h"

namespace dtrain::checkpoint {
namespace {

// Reads around the page cache need it (ReadableFile::PassCache).
constexpr std::align_val_t kBlockAlignment{4096};

absl::Status ThreadThrew() { return absl::InternalError("a thread that reads met an exception"); }

}  // namespace

void BlockReader::FreeBlock::operator()(std::byte* block) const {
  ::operator delete(block, kBlockAlignment);
}

BlockReader::BlockReader(const ReadableFile& file, uint64_t bytes)
    : file_(file), bytes_(bytes), blocks_((bytes + kBlockBytes - 1) / kBlockBytes) {
  const bool alone = blocks_ < kSharedBlocksMin;
  const uint64_t lanes = alone ? 1 : std::min<uint64_t>(kReaders, blocks_);
  for (uint64_t i = 0; i < lanes; ++i) {
    lanes_.push_back(std::make_unique<Lane>());
    lanes_.back()->block.reset(
        static_cast<std::byte*>(::operator new(std::min(bytes, kBlockBytes), kBlockAlignment)));
    if (!alone) {
      lanes_.back()->thread =
          std::make_unique<Worker>(WorkerOptions{.name = "dtrain-read", .queue_capacity = 1});
    }
  }
}

absl::StatusOr<absl::Span<const std::byte>> BlockReader::Next() {
  const absl::Span<std::byte> place = Place(next_);
  absl::Status status;
  if (lanes_.size() == 1) {
    status = file_.ReadAt(next_ * kBlockBytes, place);
  } else {
    // The block before this one is no longer used, so that its lane can go on.
    for (; started_ < std::min(blocks_, next_ + lanes_.size()); ++started_) {
      Start(started_);
    }
    status = *lanes_[next_ % lanes_.size()]->ended.Pop();
  }
  if (!status.ok()) {
    return status;
  }
  ++next_;
  WorkCount::Note();
  return place;
}

absl::Span<std::byte> BlockReader::Place(uint64_t block) const {
  return {lanes_[block % lanes_.size()]->block.get(),
          std::min(kBlockBytes, bytes_ - block * kBlockBytes)};
}

void BlockReader::Start(uint64_t block) {
  Lane& lane = *lanes_[block % lanes_.size()];
  lane.thread->Submit([this, block, &lane] {
    absl::Status status = ThreadThrew();
    const absl::Cleanup end = [&] { lane.ended.Push(std::move(status)); };
    status = file_.ReadAt(block * kBlockBytes, Place(block));
  });
}

absl::Status ForEachAtOnce(uint64_t count, absl::FunctionRef<absl::Status(uint64_t)> body,
                           size_t threads) {
  std::mutex mutex;
  uint64_t next = 0;
  uint64_t done = 0;
  uint64_t end = count;  // The lowest number whose call has failed.
  absl::Status first;
  WorkCount* const work = WorkCount::OfThread();
  const auto run = [&] {
    const WorkCount::Scope counts(work);
    std::unique_lock lock(mutex);
    while (next < end) {
      const uint64_t i = next++;
      lock.unlock();
      absl::Status status = body(i);
      WorkCount::Note();
      lock.lock();
      ++done;
      if (!status.ok() && i < end) {
        end = i;
        first = std::move(status);
      }
    }
  };
  {
    std::vector<std::unique_ptr<Worker>> helpers;
    for (uint64_t i = 1; i < std::min<uint64_t>(threads, count); ++i) {
      helpers.push_back(
          std::make_unique<Worker>(WorkerOptions{.name = "dtrain-read", .queue_capacity = 1}));
      helpers.back()->Submit(run);
    }
    run();
  }  // Waits for the helpers.
  return first.ok() && done != count ? ThreadThrew() : first;
}

}  // namespace dtrain::checkpoint
