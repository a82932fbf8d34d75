// The NCCL groups of a process that end together: a group and those split off it.
//
// A collective that hangs in one of them holds up the streams of the others, through the compute
// stream that follows its results. ncclCommAbort waits for the streams of its communicator, so it
// returns only when all of them are aborted at the same time, each on its group's own thread.
// Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace dtrain::comm {

class NcclFamily {
 public:
  // Asks a member to abort for this reason. It must not block.
  using AskToAbort = std::function<void(const std::string& reason)>;

  void Join(const void* member, AskToAbort ask) {
    std::lock_guard lock(mutex_);
    members_.emplace(member, std::move(ask));
  }
  // When this returns, `member` is not asked any more.
  void Leave(const void* member) {
    std::lock_guard lock(mutex_);
    members_.erase(member);
  }
  void AbortOthers(const void* member, const std::string& reason) {
    std::lock_guard lock(mutex_);
    for (const auto& [other, ask] : members_) {
      if (other != member) {
        ask(reason);
      }
    }
  }

 private:
  std::mutex mutex_;
  std::map<const void*, AskToAbort> members_;
};

}  // namespace dtrain::comm
