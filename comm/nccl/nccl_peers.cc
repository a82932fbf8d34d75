#include "comm/nccl/nccl_peers.h"

#include <utility>

#include "base/deadline.h"
#include "base/threads/worker.h"

namespace dtrain::comm {

NcclPeers::NcclPeers(NcclArrivals arrivals, absl::Duration interval)
    : arrivals_(std::move(arrivals)), interval_(interval) {
  if (arrivals_.has_store()) {
    thread_ = std::thread([this] { Run(); });
  }
}

NcclPeers::~NcclPeers() {
  if (!thread_.joinable()) {
    return;
  }
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void NcclPeers::Entered(uint64_t sequence, const std::string& what) {
  std::lock_guard lock(mutex_);
  entered_ = sequence + 1;
  entered_what_ = what;
}

void NcclPeers::FinishedBefore(uint64_t sequence) {
  std::lock_guard lock(mutex_);
  finished_before_ = sequence;
}

void NcclPeers::Ask(uint64_t sequence) {
  std::lock_guard lock(mutex_);
  to_ask_.push_back(sequence);
  changed_.notify_all();
}

std::optional<std::string> NcclPeers::abort() const {
  std::lock_guard lock(mutex_);
  return abort_;
}

void NcclPeers::AnnounceAbort(const std::string& reason) {
  {
    std::lock_guard lock(mutex_);
    group_ended_ = true;
  }
  arrivals_.AnnounceAbort(reason);
}

std::optional<std::string> NcclPeers::Answer(uint64_t sequence) const {
  std::lock_guard lock(mutex_);
  if (sequence < finished_before_) {
    return std::string(kThrough);
  }
  return entered_ == sequence + 1 ? std::optional<std::string>(entered_what_) : std::nullopt;
}

void NcclPeers::AskAll(const std::vector<uint64_t>& sequences) {
  for (const uint64_t sequence : sequences) {
    arrivals_.Ask(sequence);
    if (const auto answer = Answer(sequence); answer.has_value()) {
      arrivals_.Announce(sequence, *answer);
    }
  }
}

void NcclPeers::Poll() {
  const NcclArrivals::Notes notes = arrivals_.Poll();
  for (const uint64_t sequence : notes.questions) {
    if (const auto answer = Answer(sequence); answer.has_value()) {
      arrivals_.Announce(sequence, *answer);
    }
  }
  if (notes.abort.has_value()) {
    std::lock_guard lock(mutex_);
    abort_ = notes.abort;
  }
}

void NcclPeers::Run() {
  PrepareThread("dt-nccl-peers", false);
  Deadline next_poll = Deadline::After(interval_);
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (group_ended_) {
      changed_.wait(lock);
      continue;
    }
    if (to_ask_.empty() && !next_poll.Expired()) {
      changed_.wait_for(lock, absl::ToChronoNanoseconds(next_poll.Remaining()));
      continue;
    }
    const std::vector<uint64_t> asking = std::exchange(to_ask_, {});
    lock.unlock();
    AskAll(asking);
    if (next_poll.Expired()) {
      Poll();
      next_poll = Deadline::After(interval_);
    }
    lock.lock();
  }
}

}  // namespace dtrain::comm
