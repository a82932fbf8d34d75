// A process that was started for a host: ssh, or the agent itself where no ssh is needed. It runs
// on this host (LocalProcess) or on a host that starts others (relay_link.h); its owner sees no
// difference. Used by the main thread; never blocks.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/unique_fd.h"
#include "launcher/hosts/frames.h"

namespace dtrain::launcher {

// How such a process ended.
struct ProcessEnd {
  int wait_status = 0;   // The status that waitpid gives.
  std::string why_lost;  // "": it ended by itself. Else the host that ran it was lost, and why.
};

class AgentProcess {
 public:
  AgentProcess() = default;
  AgentProcess(const AgentProcess&) = delete;
  AgentProcess& operator=(const AgentProcess&) = delete;
  virtual ~AgentProcess() = default;

  // Queues bytes for its stdin.
  virtual void Write(absl::string_view bytes) = 0;
  // Closes its stdin; what is queued is dropped.
  virtual void CloseInput() = 0;
  // Kills it with all processes of its session.
  virtual void Kill() = 0;
  // Writes what its stdin takes now, and adds what it has written to `out` and `err`. Nothing is
  // read from a descriptor unless `may_read`.
  virtual void Move(bool may_read, std::string& out, std::string& err) = 0;
  // Nothing while it runs. Its end is given once, together with the last of what it has written.
  virtual std::optional<ProcessEnd> TakeEnd(std::string& out, std::string& err) = 0;
  // Adds the descriptors for which its owner has to wait.
  virtual void AddTo(std::vector<pollfd>& entries, bool may_read) const = 0;
};

// A child of this process.
class LocalProcess : public AgentProcess {
 public:
  // Starts `command` in a session of its own, so that the terminal's Ctrl-C does not reach it and
  // ssh has no terminal to ask questions on.
  static absl::StatusOr<std::unique_ptr<AgentProcess>> Start(
      const std::vector<std::string>& command);

  void Write(absl::string_view bytes) override { to_agent_.Add(bytes); }
  void CloseInput() override;
  void Kill() override;
  void Move(bool may_read, std::string& out, std::string& err) override;
  std::optional<ProcessEnd> TakeEnd(std::string& out, std::string& err) override;
  void AddTo(std::vector<pollfd>& entries, bool may_read) const override;

 private:
  LocalProcess(pid_t pid, UniqueFd in, UniqueFd out, UniqueFd err);

  pid_t pid_;  // -1: it has ended.
  UniqueFd in_;
  UniqueFd out_;
  UniqueFd err_;
  ByteQueue to_agent_;
};

// Says in one line why `program` ended or does not answer: the last line of what it wrote to
// stderr, else how it ended; no `end`: it still runs. Pure.
std::string DescribeSilence(const std::string& program, const std::string& said,
                            const std::optional<ProcessEnd>& end);

}  // namespace dtrain::launcher
