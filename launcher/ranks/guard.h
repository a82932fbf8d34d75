// A small watching process: when the launcher dies without a word (kill -9, a crash), it kills the
// ranks' process groups and removes the agent's folder, so that nothing is left behind.
//
// The kernel's parent-death signal already ends each rank; the guard also ends the processes that
// ranks started (a script's children). Owns its process; not thread-safe.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace dtrain::launcher {

class Guard {
 public:
  // Forks the watching process. REQUIRES: the caller has one thread. `folder` is removed when the
  // launcher dies.
  static absl::StatusOr<Guard> Start(const std::string& folder);
  Guard(Guard&&) = default;
  Guard& operator=(Guard&&) = default;
  // Tells the guard to end without doing anything, and waits for its end.
  ~Guard();

  // Each rank itself writes its process group (pid_t) here before it executes its program. If the
  // launcher did it, a launcher that is killed just then would leave the rank's children behind.
  int watch_fd() const { return pipe_.get(); }
  // Only when the group has no process left.
  void Forget(pid_t group) { Send(-group); }
  pid_t pid() const { return pid_; }

 private:
  Guard(UniqueFd pipe, pid_t pid) : pipe_(std::move(pipe)), pid_(pid) {}
  void Send(pid_t message);

  UniqueFd pipe_;  // Its end of file tells the guard that the launcher has gone.
  pid_t pid_ = -1;
};

}  // namespace dtrain::launcher
