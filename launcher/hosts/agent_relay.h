// The first process of a host's agent: passes the starter's signals on to the node's launcher, and
// the launcher's output, its coordinator's address and its exit code back.
//
// Used by the main thread. It never blocks on one of its ends: output waits in a bounded queue.
#pragma once

#include <sys/types.h>

#include <utility>

#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/unique_fd.h"
#include "launcher/hosts/frames.h"
#include "launcher/ranks/signals.h"

namespace dtrain::launcher {

// The pipes between the two processes.
class NodePipes {
 public:
  static absl::StatusOr<NodePipes> Create();

  // In the launcher's process: stdin becomes empty, stdout and stderr become the pipes. Gives the
  // descriptor to which the address of the coordinator is written.
  int EnterNode();
  // In the other process: closes the launcher's ends.
  void LeaveNode();

  UniqueFd out;  // The reading ends.
  UniqueFd err;
  UniqueFd serving;

 private:
  UniqueFd out_end_;
  UniqueFd err_end_;
  UniqueFd serving_end_;
};

struct RelayParts {
  pid_t launcher = -1;
  int stop_signal = 0;  // The launcher gets it when the starter is lost.
  SignalSource& signals;
  NodePipes pipes;
  FrameReader reader;  // The starter's frames on stdin.
};

class AgentRelay {
 public:
  explicit AgentRelay(RelayParts parts) : parts_(std::move(parts)), to_starter_(1) {}

  // Blocks until the launcher has ended and its output is sent. Its exit code, or 128 + the signal
  // that killed it.
  absl::StatusOr<int> Run();

 private:
  void Wait();
  void WaitForOutput(Deadline deadline);
  void TakeSignals();
  void ReadFrames();
  void TakeFrames();
  void TakeOutput(UniqueFd& from, FrameKind kind);
  void LoseStarter();
  void Send(FrameKind kind, absl::string_view payload);

  RelayParts parts_;
  ByteQueue to_starter_;
  bool starter_lost_ = false;
};

}  // namespace dtrain::launcher
