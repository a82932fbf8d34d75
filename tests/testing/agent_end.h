// The agent's end of a rank's channel (base/agent_channel.h), for tests of what a rank sends.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "base/agent_channel.h"
#include "base/unique_fd.h"

namespace dtrain {

class AgentEnd {
 public:
  AgentEnd() {
    char folder[] = "/tmp/dtrain-agent-test-XXXXXX";
    folder_ = mkdtemp(folder);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path().c_str(), sizeof(address.sun_path) - 1);
    listener_.reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
              0);
    EXPECT_EQ(listen(listener_.get(), 4), 0);
  }
  AgentEnd(const AgentEnd&) = delete;
  AgentEnd& operator=(const AgentEnd&) = delete;
  ~AgentEnd() {
    unlink(path().c_str());
    rmdir(folder_.c_str());
  }
  std::string path() const { return folder_ + "/agent"; }
  // The rank's end, connected to this one.
  AgentChannel Connect() {
    absl::StatusOr<AgentChannel> channel = AgentChannel::Connect(path());
    EXPECT_TRUE(channel.ok()) << channel.status();
    Accept();
    return channel.ok() ? *std::move(channel) : AgentChannel();
  }
  void Accept() { connection_.reset(accept(listener_.get(), nullptr, nullptr)); }
  void Close() { connection_.reset(); }
  void Send(const std::string& text) const {
    EXPECT_EQ(send(connection_.get(), text.data(), text.size(), 0),
              static_cast<ssize_t>(text.size()));
  }
  // The next message. Empty: the rank has gone.
  std::string Receive() { return Take(0); }
  // The same, and also empty when none has arrived.
  std::string TakeArrived() { return Take(MSG_DONTWAIT); }

 private:
  std::string Take(int flags) {
    char buffer[16384];
    const ssize_t bytes = recv(connection_.get(), buffer, sizeof(buffer), flags);
    return bytes > 0 ? std::string(buffer, static_cast<size_t>(bytes)) : "";
  }

  std::string folder_;
  UniqueFd listener_;
  UniqueFd connection_;
};

}  // namespace dtrain
