// The coordinator of an elastic job in a process of its own, beside node 0's agent.
//
// When it ends, whatever the reason, node 0's agent starts another at the same address, which
// adopts the attempt that runs. The ranks do not notice. The process ends with the agent: its
// standard input is a pipe that the agent holds. Thread-safe.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/unique_fd.h"
#include "launcher/nodes/coordinator.h"

namespace dtrain::launcher {

class CoordinatorProcess {
 public:
  // Blocks until it listens. `say` is called from another thread when it was started again.
  static absl::StatusOr<std::unique_ptr<CoordinatorProcess>> Start(
      const CoordinatorOptions& options, std::function<void(const std::string&)> say);
  // Waits until the agents have read the last order and are gone, a few seconds at most.
  ~CoordinatorProcess();

  const comm::Endpoint& endpoint() const { return options_.endpoint; }

 private:
  CoordinatorProcess(const CoordinatorOptions& options,
                     std::function<void(const std::string&)> say);
  absl::Status Spawn();
  void Run();
  void AwaitEnd();

  CoordinatorOptions options_;  // The endpoint's port becomes that of the first process.
  const std::function<void(const std::string&)> say_;
  UniqueFd input_;   // Its standard input.
  UniqueFd output_;  // Its standard output, whose end of file says that it has ended.
  UniqueFd stop_;    // An eventfd.
  std::thread thread_;
};

// The process of this agent's coordinator, which is no stray child of its ranks; -1: there is none.
// One that is being started is waited for, so a child that was seen before the call is told apart.
pid_t CoordinatorPid();

// The one line that a coordinator's process reads. It has the job's token.
std::string EncodeCoordinatorOptions(const CoordinatorOptions& options);
absl::StatusOr<CoordinatorOptions> ParseCoordinatorOptions(absl::string_view text);

// `dtrain coordinator`, which is not for users. Returns the exit code.
int CoordinatorCommand();

}  // namespace dtrain::launcher
