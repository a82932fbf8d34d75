// Signals as events: blocked in all threads and read from a descriptor by the supervisor.
#pragma once

#include <csignal>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace dtrain::launcher {

class SignalSource {
 public:
  // Blocks SIGCHLD and `stop_signals` in this thread and those it starts later. SIGHUP is left
  // alone where this process ignores it, as under nohup.
  // REQUIRES: the caller has one thread.
  static absl::StatusOr<SignalSource> Create(const std::vector<int>& stop_signals);

  int poll_fd() const { return fd_.get(); }
  // The signals that arrived, SIGCHLD too, oldest first. Never blocks.
  std::vector<int> Take();

 private:
  explicit SignalSource(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

// Numbers from "SIGTERM,SIGINT" (torchrun's --signals-to-handle); SIGTERM, SIGINT, SIGHUP, SIGQUIT,
// SIGUSR1 and SIGUSR2 are allowed. Pure.
absl::StatusOr<std::vector<int>> ParseSignals(const std::string& text);

// `signals` and those by which launchers, Slurm and `dtrain stop` ask for a save and an end: one
// that is not handled would end the launcher, and with it the ranks, at once. Pure.
std::vector<int> WithOwnSignals(std::vector<int> signals, bool in_slurm);

// The signal that ranks get for a received stop signal: SIGINT stays, all others become SIGTERM,
// which programs know as "save, then stop". Pure.
int ForwardedSignal(int received);

}  // namespace dtrain::launcher
