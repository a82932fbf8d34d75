#include "base/agent_channel.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_format.h"
#include "base/json.h"

namespace dtrain {
namespace {
constexpr std::array<const char*, 4> kKindNames = {"hello", "beat", "error", "done"};
constexpr size_t kTextMax = 4096;  // Keeps a datagram far below the socket buffer.
}  // namespace

std::string AgentMessage::Encode() const {
  Json json = {{"kind", kKindNames.at(static_cast<size_t>(kind))},
               {"rank", rank},
               {"pid", pid},
               {"step", step},
               {"collective", collective},
               {"exit_code", exit_code},
               {"phase", phase},
               {"text", text.substr(0, kTextMax)}};
  return DumpJson(json);
}

absl::StatusOr<AgentMessage> AgentMessage::Parse(absl::string_view line) {
  DT_ASSIGN_OR_RETURN(const Json json, ParseJson(line, "agent message"));
  AgentMessage message;
  if (!json.is_object()) {
    return absl::InvalidArgumentError("agent message is not an object");
  }
  const std::string kind = json.contains("kind") && json["kind"].is_string() ? json["kind"] : "";
  const auto integer = [&json](const char* key) -> int64_t {
    return json.contains(key) && json[key].is_number_integer() ? json[key].get<int64_t>() : 0;
  };
  const auto text = [&json](const char* key) -> std::string {
    return json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : "";
  };
  for (size_t i = 0; i < kKindNames.size(); ++i) {
    if (kind == kKindNames.at(i)) {
      message.kind = static_cast<Kind>(i);
      message.rank = static_cast<int>(integer("rank"));
      message.pid = static_cast<int>(integer("pid"));
      message.step = integer("step");
      message.collective = static_cast<uint64_t>(integer("collective"));
      message.exit_code = static_cast<int>(integer("exit_code"));
      message.phase = text("phase");
      message.text = text("text");
      return message;
    }
  }
  return absl::InvalidArgumentError(absl::StrFormat("agent message of unknown kind \"%s\"", kind));
}

absl::StatusOr<AgentChannel> AgentChannel::Connect(const std::string& socket_path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket_path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("agent socket path %s has %d bytes; allowed: below %d", socket_path,
                        socket_path.size(), sizeof(address.sun_path)));
  }
  std::memcpy(address.sun_path, socket_path.c_str(), socket_path.size() + 1);
  AgentChannel channel;
  channel.fd_.reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!channel.fd_.valid()) {
    return ErrnoStatus(errno, "agent socket");
  }
  if (connect(channel.fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) !=
      0) {
    return ErrnoStatus(errno, absl::StrFormat("cannot reach the agent at %s", socket_path));
  }
  return channel;
}

void AgentChannel::Send(const AgentMessage& message) {
  if (!fd_.valid()) {
    return;
  }
  const std::string line = message.Encode();
  if (send(fd_.get(), line.data(), line.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    ++dropped_;
  }
}

}  // namespace dtrain
