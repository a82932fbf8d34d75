// The agent's end of the ranks' channel (base/agent_channel.h): accepts ranks and decodes messages.
//
// Not thread-safe; never blocks. Only processes of this user are accepted. What ranks send is
// bounded (a datagram) and malformed messages are counted and dropped.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/agent_channel.h"
#include "base/unique_fd.h"

namespace dtrain::launcher {

class AgentSocket {
 public:
  // Listens at `path` (mode 0600).
  static absl::StatusOr<AgentSocket> Listen(const std::string& path);

  const std::string& path() const { return path_; }
  // Becomes readable when Receive has something to do. Valid as long as this object.
  int poll_fd() const { return epoll_.get(); }
  // Accepts who knocks and returns what has arrived, at most about 1,000 messages.
  std::vector<AgentMessage> Receive();
  uint64_t malformed() const { return malformed_; }

 private:
  AgentSocket(UniqueFd listener, UniqueFd epoll, std::string path)
      : listener_(std::move(listener)), epoll_(std::move(epoll)), path_(std::move(path)) {}
  void Accept();
  void ReceiveFrom(int fd, std::vector<AgentMessage>& messages);

  UniqueFd listener_;
  UniqueFd epoll_;
  std::string path_;
  std::vector<UniqueFd> clients_;
  uint64_t malformed_ = 0;
};

}  // namespace dtrain::launcher
