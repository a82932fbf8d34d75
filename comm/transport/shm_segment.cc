#include "comm/transport/shm_segment.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"

namespace dtrain::comm {
namespace {

constexpr size_t kPage = 4096;

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Shared futexes: the waiters are other processes.
void FutexWake(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}
void FutexWait(std::atomic<uint32_t>* word, uint32_t expected, absl::Duration timeout) {
  const timespec limit = absl::ToTimespec(std::max(timeout, absl::ZeroDuration()));
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT, expected, &limit, nullptr, 0);
}

// The children of rank r in the tree are those from FirstChild(r) to before FirstChild(r + 1).
int FirstChild(int index, int size) { return std::min(index * kTreeFan + 1, size); }

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShmSegment>> ShmSegment::Create(UnixMesh& mesh,
                                                               const std::string& name,
                                                               const WaitContext& context,
                                                               int flat_ranks_max) {
  const auto size = static_cast<size_t>(mesh.size());
  const size_t control = RoundUp(sizeof(Verdict) + sizeof(Cell) * size + 64, kPage);
  const size_t bytes = control + size * 2 * kStageBytes;
  UniqueFd fd;
  if (mesh.self() == 0) {
    DT_ASSIGN_OR_RETURN(fd, CreateSharedSegment(bytes, absl::StrCat(name, ".control")));
  } else {
    DT_ASSIGN_OR_RETURN(fd, mesh.ReceiveFd(0, context));
    DT_RETURN_IF_ERROR(CheckSegment(fd.get(), bytes, mesh.PeerName(0)));
  }
  DT_ASSIGN_OR_RETURN(SharedMapping mapping, SharedMapping::Map(fd.get(), bytes, name));
  if (mesh.self() == 0) {
    DT_RETURN_IF_ERROR(ReserveMemory(mapping, fd.get(), absl::StrCat(name, " coordination")));
    for (int i = 1; i < mesh.size(); ++i) {
      DT_RETURN_IF_ERROR(mesh.SendFd(i, fd.get(), context));
    }
  }
  auto segment = std::unique_ptr<ShmSegment>(
      new ShmSegment(mesh, std::move(mapping), mesh.size() > flat_ranks_max));
  DT_RETURN_IF_ERROR(segment->Sync(context));
  return segment;
}

ShmSegment::ShmSegment(UnixMesh& mesh, SharedMapping mapping, bool tree)
    : mesh_(mesh),
      self_(mesh.self()),
      size_(mesh.size()),
      tree_(tree),
      first_child_(FirstChild(self_, size_)),
      end_child_(FirstChild(self_ + 1, size_)),
      mapping_(std::move(mapping)) {
  // Zeroed memory is a valid initial state of all objects in it.
  verdict_ = reinterpret_cast<Verdict*>(mapping_.data());
  cells_ = reinterpret_cast<Cell*>(mapping_.data() + RoundUp(sizeof(Verdict), 64));
  const size_t control =
      RoundUp(sizeof(Verdict) + sizeof(Cell) * static_cast<size_t>(size_) + 64, kPage);
  stages_ = mapping_.data() + control;
}

void ShmSegment::Publish(const CallHeader& header) {
  cells_[self_].headers[header.sequence & 1] = header;
  cells_[self_].last_sequence.store(header.sequence, std::memory_order_release);
}

absl::Status ShmSegment::Sync(const WaitContext& context) {
  ++phase_;
  Set(cells_[self_].arrived, phase_);
  return tree_ ? AwaitTree(context) : AwaitAll(context);
}

void ShmSegment::Set(Word& word, uint32_t phase) {
  word.phase.store(phase, std::memory_order_seq_cst);
  // Either this load sees the sleeper, or the sleeper sees the new phase before it sleeps.
  if (word.sleepers.load(std::memory_order_seq_cst) != 0) {
    ++futex_calls_.wakes;
    FutexWake(&word.phase);
  }
}

bool ShmSegment::SpinFor(const Word& word, uint32_t target, const WaitContext& context,
                         int64_t& spin_until) {
  if (!context.may_spin()) {
    return word.Reached(target);
  }
  // A late rank mostly comes sooner than a pause (40 to 140 cycles) and a clock read take.
  for (int i = 0; i < 64; ++i) {
    if (word.Reached(target)) {
      return true;
    }
  }
  if (spin_until == 0) {
    spin_until = Clock::Real().MonotonicNanos() + absl::ToInt64Nanoseconds(context.spin);
  }
  do {
    for (int i = 0; i < 32; ++i) {
      if (word.Reached(target)) {
        return true;
      }
      Pause();
    }
  } while (Clock::Real().MonotonicNanos() < spin_until);
  return false;
}

absl::Status ShmSegment::AwaitWord(Word& word, const WaitContext& context, int64_t& spin_until) {
  const uint32_t target = phase_;
  if (word.Reached(target) || SpinFor(word, target, context, spin_until)) {
    return absl::OkStatus();
  }
  while (!word.Reached(target)) {
    word.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t seen = word.phase.load(std::memory_order_seq_cst);
    if (static_cast<int32_t>(seen - target) < 0) {
      ++futex_calls_.waits;
      FutexWait(&word.phase, seen, std::min(kWaitSlice, context.deadline.Remaining()));
    }
    word.sleepers.fetch_sub(1, std::memory_order_relaxed);
    if (!word.Reached(target)) {
      DT_RETURN_IF_ERROR(Missing(target, context));
    }
  }
  return absl::OkStatus();
}

absl::Status ShmSegment::AwaitAll(const WaitContext& context) {
  int64_t spin_until = 0;
  for (int index = 0; index < size_; ++index) {
    DT_RETURN_IF_ERROR(AwaitWord(cells_[index].arrived, context, spin_until));
  }
  return absl::OkStatus();
}

// All ranks see what a rank wrote: it writes before it sets its word, its parent reads that word
// before it sets its own, and so on up to the root's word, which all read.
absl::Status ShmSegment::AwaitTree(const WaitContext& context) {
  int64_t spin_until = 0;
  for (int child = first_child_; child < end_child_; ++child) {
    DT_RETURN_IF_ERROR(AwaitWord(cells_[child].below, context, spin_until));
  }
  Set(cells_[self_].below, phase_);
  return AwaitWord(cells_[0].below, context, spin_until);
}

bool ShmSegment::AllReached(int first, int end, uint32_t target) const {
  for (int index = first; index < end; ++index) {
    if (!cells_[index].below.Reached(target)) {
      return false;
    }
  }
  return true;
}

bool ShmSegment::HoldsUp(int index, uint32_t target) const {
  if (!tree_ || !cells_[index].arrived.Reached(target)) {
    return !cells_[index].arrived.Reached(target);
  }
  return !cells_[index].below.Reached(target) &&
         AllReached(FirstChild(index, size_), FirstChild(index + 1, size_), target);
}

absl::Status ShmSegment::Missing(uint32_t target, const WaitContext& context) const {
  DT_RETURN_IF_ERROR(context.interrupted());
  DT_RETURN_IF_ERROR(BrokenStatus());
  for (int index = 0; index < size_; ++index) {
    if (index == self_ || !HoldsUp(index, target)) {
      continue;
    }
    absl::Status alive = mesh_.CheckAlive(index);
    // It may have arrived, or said why it leaves, just before it went.
    if (!alive.ok() && HoldsUp(index, target)) {
      DT_RETURN_IF_ERROR(BrokenStatus());
      return alive;
    }
  }
  return context.deadline.Expired() ? Report(target) : absl::OkStatus();
}

std::vector<int> ShmSegment::Awaited() const {
  std::vector<int> awaited;
  for (int index = 0; index < size_; ++index) {
    if (index != self_ && HoldsUp(index, phase_)) {
      awaited.push_back(mesh_.rank(index));
    }
  }
  return awaited;
}

absl::Status ShmSegment::Report(uint32_t target) const {
  std::string text = "timed out waiting for";
  absl::string_view separator = " ";
  for (int index = 0; index < size_; ++index) {
    if (index == self_ || !HoldsUp(index, target)) {
      continue;
    }
    const uint64_t last = cells_[index].last_sequence.load(std::memory_order_acquire);
    absl::StrAppend(&text, separator, mesh_.PeerName(index));
    if (last == 0) {
      absl::StrAppend(&text, ", which has called nothing yet");
    } else {
      absl::StrAppend(&text, ", last seen at collective ", last, " (",
                      Describe(cells_[index].headers[last & 1]), ")");
    }
    separator = "; ";
  }
  // All ranks have arrived by now, so the awaited word will be set next.
  return separator == " " ? absl::OkStatus() : absl::DeadlineExceededError(text);
}

void ShmSegment::Break(const absl::Status& reason) {
  uint32_t none = 0;
  if (verdict_->state.compare_exchange_strong(none, 1)) {
    verdict_->code = static_cast<int32_t>(reason.code());
    verdict_->rank = self_;
    const absl::string_view text = reason.message();
    const size_t length = std::min(text.size(), sizeof(verdict_->text) - 1);
    std::memcpy(verdict_->text, text.data(), length);
    verdict_->text[length] = '\0';
    verdict_->state.store(2, std::memory_order_release);
  }
  for (int index = 0; index < size_; ++index) {
    FutexWake(&cells_[index].arrived.phase);
    FutexWake(&cells_[index].below.phase);
  }
}

absl::Status ShmSegment::BrokenStatus() const {
  if (verdict_->state.load(std::memory_order_acquire) != 2) {
    return absl::OkStatus();
  }
  const absl::string_view text(verdict_->text, strnlen(verdict_->text, sizeof(verdict_->text)));
  const std::string message =
      verdict_->rank == self_
          ? std::string(text)
          : absl::StrCat("reported by ", mesh_.PeerName(verdict_->rank), ": ", text);
  return absl::Status(static_cast<absl::StatusCode>(verdict_->code), message);
}

}  // namespace dtrain::comm
