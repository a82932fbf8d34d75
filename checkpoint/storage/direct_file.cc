#include "checkpoint/storage/direct_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/status.h"
#include "checkpoint/storage/storage.h"

namespace dtrain::checkpoint {
namespace {

// Offsets, lengths and memory are aligned to it: no disk asks for more, and many for less.
constexpr size_t kDirectAlignment = kHeldAlignment;
// The size of a file's first block.
constexpr size_t kFirstBlockBytes = 1 << 20;
// Writes of a file that the system may interrupt.
constexpr int kRetriesMax = 1000;

}  // namespace

DirectFile::DirectFile(int fd, uint64_t size, std::unique_ptr<WriteQueue> queue,
                       std::shared_ptr<WriteBlocks> blocks)
    : fd_(fd),
      blocks_(std::move(blocks)),
      size_(size),
      retries_left_(kRetriesMax),
      queue_(std::move(queue)) {
  const int flags = fcntl(fd_, F_GETFL);
  is_direct_ = flags >= 0 && fcntl(fd_, F_SETFL, flags | O_DIRECT) == 0;
}

absl::Status DirectFile::Append(absl::Span<const std::byte> data) {
  while (status_.ok() && !data.empty()) {
    if (current_ == kWriteSlots) {
      TakeSlot();
      continue;
    }
    const size_t n = std::min(data.size(), room_ - filled_);
    std::memcpy(slots_[current_].block.get() + filled_, data.data(), n);
    data.remove_prefix(n);
    filled_ += n;
    bytes_ += n;
    if (filled_ == room_) {
      Write(std::exchange(current_, kWriteSlots), room_);
    }
  }
  return status_;
}

absl::Status DirectFile::AppendHeld(absl::Span<const std::byte> data) {
  const bool is_aligned = bytes_ % kDirectAlignment == 0 &&
                          reinterpret_cast<uintptr_t>(data.data()) % kDirectAlignment == 0;
  if (!is_direct_ || !is_aligned || data.size() < kDirectAlignment) {
    return Append(data);
  }
  if (current_ != kWriteSlots) {
    Write(std::exchange(current_, kWriteSlots), filled_);  // Whole units, as the file's end is one.
  }
  // Writes that move the file's end wait for each other and use a core meanwhile. What a crash
  // leaves in their place is zeros, as of writes that end in another order.
  if (const uint64_t end = bytes_ + data.size();
      end > size_ &&
      fallocate(fd_, 0, static_cast<off_t>(size_), static_cast<off_t>(end - size_)) == 0) {
    size_ = end;
  }
  while (status_.ok() && data.size() >= kDirectAlignment) {
    const size_t slot = FreeSlot();
    if (slot == kWriteSlots) {
      break;
    }
    const size_t n = std::min(data.size() / kDirectAlignment * kDirectAlignment, kWriteBlockBytes);
    slots_[slot].from = data.data();
    Write(slot, n);
    data.remove_prefix(n);
    bytes_ += n;
  }
  return Append(data);
}

absl::Status DirectFile::Sync() {
  if (status_.ok() && current_ != kWriteSlots) {
    WriteTail();
  }
  Drain();
  if (status_.ok() && size_ > bytes_ && ftruncate(fd_, static_cast<off_t>(bytes_)) != 0) {
    Fail(ErrnoStatus(errno, "cannot set the file's size"));
  }
  size_ = bytes_;
  if (status_.ok() && fsync(fd_) != 0) {
    Fail(ErrnoStatus(errno, "cannot make durable (fsync)"));
  }
  return status_;
}

size_t DirectFile::FreeSlot() {
  const auto is_free = [](const Slot& slot) { return !slot.is_busy; };
  while (status_.ok()) {
    const auto found = std::find_if(slots_.begin(), slots_.end(), is_free);
    if (found != slots_.end()) {
      found->offset = bytes_;
      return static_cast<size_t>(found - slots_.begin());
    }
    WaitForOne();  // A short write goes on in its slot, so that none may be free yet.
  }
  return kWriteSlots;
}

void DirectFile::TakeSlot() {
  const size_t found = FreeSlot();
  if (found == kWriteSlots) {
    return;
  }
  Slot& slot = slots_[found];
  if (slot.block == nullptr) {
    slot.block = blocks_->Take();
  }
  slot.from = slot.block.get();
  filled_ = 0;
  room_ = bytes_ == 0 ? kFirstBlockBytes : kWriteBlockBytes;
  current_ = found;
}

void DirectFile::Write(size_t slot, size_t bytes) {
  slots_[slot].bytes = bytes;
  slots_[slot].written = 0;
  StartRest(slot);
}

void DirectFile::StartRest(size_t slot) {
  Slot& at = slots_[slot];
  const absl::Status started =
      queue_->Start(slot, fd_, at.offset + at.written,
                    absl::MakeConstSpan(at.from + at.written, at.bytes - at.written));
  if (!started.ok()) {
    Fail(started);
    return;
  }
  at.is_busy = true;
  at.is_direct = is_direct_;
  ++under_way_;
}

void DirectFile::WaitForOne() {
  const absl::StatusOr<WriteQueue::Ended> ended = queue_->Wait();
  if (!ended.ok()) {  // Nothing is known of the others either.
    under_way_ = 0;
    Fail(ended.status());
    return;
  }
  Slot& slot = slots_[ended->slot];
  slot.is_busy = false;
  --under_way_;
  if (ended->result > 0) {
    slot.written += static_cast<size_t>(ended->result);
    if (slot.written % kDirectAlignment != 0) {
      SetDirect(false);  // The rest no longer begins where O_DIRECT could.
    }
  } else if ((ended->result == -EINVAL || ended->result == -EFAULT) && slot.is_direct) {
    SetDirect(false);  // The disk, or memory that a driver has mapped, is not for O_DIRECT.
  } else if ((ended->result == -EINTR || ended->result == -EAGAIN) && retries_left_ > 0) {
    --retries_left_;
  } else {
    Fail(ended->result == 0 ? absl::UnavailableError("cannot write: the system took 0 bytes")
                            : ErrnoStatus(static_cast<int>(-ended->result), "cannot write"));
  }
  if (status_.ok() && slot.written < slot.bytes) {
    StartRest(ended->slot);
  } else if (status_.ok() && !is_direct_) {
    // The disk begins now instead of at the fsync, which returns this block's errors.
    sync_file_range(fd_, static_cast<off64_t>(slot.offset), static_cast<off64_t>(slot.bytes),
                    SYNC_FILE_RANGE_WRITE);
  }
}

void DirectFile::Drain() {
  while (under_way_ > 0) {
    WaitForOne();
  }
}

void DirectFile::StartTail() {
  const size_t aligned = filled_ / kDirectAlignment * kDirectAlignment;
  if (status_.ok() && current_ != kWriteSlots && aligned > tail_) {
    Write(current_, aligned);
    tail_ = aligned;
  }
}

void DirectFile::WriteTail() {
  StartTail();
  const size_t aligned = std::exchange(tail_, 0);
  const Slot& slot = slots_[current_];
  Drain();
  const bool was_direct = is_direct_;
  if (status_.ok() && filled_ > aligned) {
    SetDirect(false);
    WriteThroughCache(slot.offset + aligned,
                      absl::MakeConstSpan(slot.block.get() + aligned, filled_ - aligned));
    SetDirect(was_direct);
  }
}

void DirectFile::WriteThroughCache(uint64_t offset, absl::Span<const std::byte> data) {
  while (status_.ok() && !data.empty()) {
    const ssize_t n = pwrite(fd_, data.data(), data.size(), static_cast<off_t>(offset));
    if (n > 0) {
      offset += static_cast<uint64_t>(n);
      data.remove_prefix(static_cast<size_t>(n));
    } else if (n == 0) {
      Fail(absl::UnavailableError("cannot write: the system took 0 bytes"));
    } else if (errno != EINTR) {
      Fail(ErrnoStatus(errno, "cannot write"));
    }
  }
}

void DirectFile::SetDirect(bool direct) {
  if (direct == is_direct_) {
    return;
  }
  const int flags = fcntl(fd_, F_GETFL);
  if (flags < 0 || fcntl(fd_, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) != 0) {
    Fail(ErrnoStatus(errno, "cannot switch O_DIRECT"));
    return;
  }
  is_direct_ = direct;
}

void DirectFile::Fail(absl::Status status) {
  if (status_.ok()) {
    status_ = std::move(status);
  }
}

}  // namespace dtrain::checkpoint
