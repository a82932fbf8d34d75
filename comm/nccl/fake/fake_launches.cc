#include "comm/nccl/fake/fake_launches.h"

#include <chrono>

namespace dtrain::comm {
namespace {

// How long a change of `stopped`, which wakes nobody, may go unnoticed.
constexpr auto kPollInterval = std::chrono::milliseconds(2);

}  // namespace

uint64_t FakeLaunches::Launch() {
  std::lock_guard lock(mutex_);
  not_begun_.insert(++launched_);
  return launched_;
}

bool FakeLaunches::MayBegin(uint64_t number) const {
  const bool is_next = !ordered_ || number == 0 || *not_begun_.begin() == number;
  return is_next && running_ < room_;
}

bool FakeLaunches::Begin(uint64_t number, const std::function<bool()>& stopped) {
  std::unique_lock lock(mutex_);
  ++arrived_;
  while (!MayBegin(number) && !stopped()) {
    changed_.wait_for(lock, kPollInterval);
  }
  const bool begins = MayBegin(number);
  not_begun_.erase(number);
  running_ += begins ? 1 : 0;
  changed_.notify_all();
  return begins;
}

void FakeLaunches::End() {
  std::lock_guard lock(mutex_);
  --running_;
  changed_.notify_all();
}

int FakeLaunches::arrived() const {
  std::lock_guard lock(mutex_);
  return arrived_;
}

}  // namespace dtrain::comm
