// The sockets by which commands of this host talk to an agent, also while it has no ranks: `dtrain
// drain` in an elastic job, and `dtrain status` in a job of several nodes. A request gets one or
// more replies; each is one datagram, or several if it is long.
//
// Only processes of this user are served, one at a time. Thread-safe.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/unique_fd.h"

namespace dtrain::launcher {

// The name of the socket for `dtrain drain` in the agent's folder.
inline constexpr char kControlSocket[] = "control";
// The name of the one that tells of all nodes. They are two, because a drain may take minutes.
inline constexpr char kNodesSocket[] = "nodes";
// The request there. The answer is JobNodes (job_status.h).
inline constexpr char kNodesQuestion[] = "nodes";

// A request that is being served.
struct ControlCall {
  std::string request;
  std::function<void(const std::string&)> reply;
  // The agent ends: give up waiting.
  std::function<bool()> is_stopping;
};

class ControlServer {
 public:
  // `serve` is called in a thread of the server and may wait in short slices.
  static absl::StatusOr<std::unique_ptr<ControlServer>> Start(
      const std::string& path, std::function<void(const ControlCall&)> serve);
  ~ControlServer();

 private:
  ControlServer(UniqueFd listener, std::function<void(const ControlCall&)> serve);
  void Run();
  void ServeOne(int client);

  UniqueFd listener_;
  const std::function<void(const ControlCall&)> serve_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

class ControlClient {
 public:
  static absl::StatusOr<ControlClient> Ask(const std::string& path, const std::string& request);
  // The next reply; nothing when the agent has no more to say. DeadlineExceeded: none came in time.
  absl::StatusOr<std::optional<std::string>> Next(Deadline deadline);
  // All further replies in one, when the agent has no more to say.
  absl::StatusOr<std::string> Rest(Deadline deadline);

 private:
  explicit ControlClient(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace dtrain::launcher
