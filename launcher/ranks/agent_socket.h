// The agent's end of the ranks' channel (base/agent_channel.h): accepts ranks and decodes messages.
//
// Not thread-safe; never blocks. Only processes of this user are accepted. Messages are bounded
// (one datagram each), and malformed ones are dropped.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/agent_channel.h"
#include "base/deadline.h"
#include "base/unique_fd.h"

namespace dtrain::launcher {

// A datagram that asks how the ranks of the node are.
inline constexpr char kQuestion[] = "status";

// Asks the agent at `socket_path`. Unavailable: it does not answer in time, as one that waits for
// other nodes or for a restart.
absl::StatusOr<std::string> AskAgent(const std::string& socket_path, Deadline deadline);

class AgentSocket {
 public:
  // Listens at `path` (mode 0600).
  static absl::StatusOr<AgentSocket> Listen(const std::string& path);

  const std::string& path() const { return path_; }
  // Becomes readable when Receive has something to do. Valid as long as this object.
  int poll_fd() const { return epoll_.get(); }
  // Accepts waiting ranks and returns the messages that have arrived, also those of ranks that have
  // connected and are gone by now. If more than kMessagesMax are there, it leaves some.
  std::vector<AgentMessage> Receive();
  // The same, and leaves none that had arrived before the call.
  std::vector<AgentMessage> ReceiveAll();
  // Those who have asked kQuestion since the last call, for Answer. Valid until the next Receive.
  std::vector<int> TakeQuestions() { return std::exchange(questions_, {}); }
  // Whether the process can stay after a failed attempt, and still listens.
  bool CanStay(int pid) const { return stayers_.count(pid) != 0; }
  // Sends the order of the next attempt to a process that can stay. Gives whether it was sent.
  bool SendOrder(int pid, const std::string& text);
  // Tells the ranks that run, as far as they listen, why their attempt has failed elsewhere.
  void TellFailure(const std::string& why) const;
  // Never blocks: who does not read gets no answer.
  static void Answer(int asker, const std::string& text);

 private:
  AgentSocket(UniqueFd listener, UniqueFd epoll, std::string path)
      : listener_(std::move(listener)), epoll_(std::move(epoll)), path_(std::move(path)) {}
  static constexpr size_t kMessagesMax = 1000;

  void Accept(std::vector<AgentMessage>& messages);
  void ReceiveFrom(int fd, std::vector<AgentMessage>& messages);

  UniqueFd listener_;
  UniqueFd epoll_;
  std::string path_;
  std::vector<UniqueFd> clients_;
  std::vector<int> questions_;  // These clients have one.
  std::map<int, int> stayers_;  // The client by which a process that can stay listens.
  std::set<int> ranks_;         // The clients of ranks that run.
};

}  // namespace dtrain::launcher
