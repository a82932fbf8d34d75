#include "base/agent_channel.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_format.h"
#include "base/json.h"

namespace dtrain {
namespace {
constexpr std::array<const char*, 7> kKindNames = {"hello",    "beat",  "error",   "done",
                                                   "can_stay", "stays", "stopping"};
constexpr size_t kTextMax = 4096;  // Keeps a datagram far below the socket buffer.
constexpr size_t kCallMax = 256;

int64_t IntegerIn(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

std::string TextIn(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

// The numbers of an array of exactly N; all 0 if it is anything else.
template <size_t N>
std::array<double, N> NumbersIn(const Json& json, const char* key) {
  std::array<double, N> numbers{};
  const auto found = json.find(key);
  if (found == json.end() || !found->is_array() || found->size() != N) {
    return numbers;
  }
  for (size_t i = 0; i < N; ++i) {
    numbers.at(i) = (*found)[i].is_number() ? (*found)[i].get<double>() : 0;
  }
  return numbers;
}

Json GroupsJson(const std::vector<GroupProgress>& groups) {
  Json rows = Json::array();
  for (size_t i = 0; i < groups.size() && i < AgentMessage::kGroupsMax; ++i) {
    rows.push_back({{"group", groups[i].group.substr(0, kCallMax)},
                    {"entered", groups[i].entered},
                    {"left", groups[i].left},
                    {"call", groups[i].call.substr(0, kCallMax)}});
  }
  return rows;
}

std::vector<GroupProgress> GroupsIn(const Json& json) {
  std::vector<GroupProgress> groups;
  const auto rows = json.find("groups");
  if (rows == json.end() || !rows->is_array()) {
    return groups;
  }
  for (const Json& row : *rows) {
    if (row.is_object() && groups.size() < AgentMessage::kGroupsMax) {
      groups.push_back({.group = TextIn(row, "group"),
                        .entered = static_cast<uint64_t>(IntegerIn(row, "entered")),
                        .left = static_cast<uint64_t>(IntegerIn(row, "left")),
                        .call = TextIn(row, "call")});
    }
  }
  return groups;
}

// Members that only some beats have.
void AddProgress(const AgentMessage& message, Json& json) {
  if (message.marks > 0) {
    json["marks"] = message.marks;
  }
  if (!message.groups.empty()) {
    json["groups"] = GroupsJson(message.groups);
  }
  if (const StepTimes& times = message.times; times.step >= 0) {
    json["times_step"] = times.step;
    json["times"] = {times.whole_s, times.data_s, times.forward_s, times.backward_s,
                     times.update_s};
  }
  if (const HangLimits& limits = message.limits; limits.slow_s > 0) {
    json["limits"] = {limits.fixed_s, limits.patience_s, limits.slow_s};
    if (limits.data_s > 0) {
      json["data_limit"] = Json::array({limits.data_s});
    }
  }
}

void ReadProgress(const Json& json, AgentMessage& message) {
  message.marks = static_cast<uint64_t>(IntegerIn(json, "marks"));
  message.groups = GroupsIn(json);
  if (json.contains("times_step")) {
    const auto [whole, data, forward, backward, update] = NumbersIn<5>(json, "times");
    message.times = {.step = IntegerIn(json, "times_step"),
                     .whole_s = whole,
                     .data_s = data,
                     .forward_s = forward,
                     .backward_s = backward,
                     .update_s = update};
  }
  const auto [fixed, patience, slow] = NumbersIn<3>(json, "limits");
  const auto [data] = NumbersIn<1>(json, "data_limit");
  message.limits = {.fixed_s = fixed, .patience_s = patience, .slow_s = slow, .data_s = data};
}
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
  AddProgress(*this, json);
  return DumpJson(json);
}

absl::StatusOr<AgentMessage> AgentMessage::Parse(absl::string_view line) {
  DT_ASSIGN_OR_RETURN(const Json json, ParseJson(line, "agent message"));
  AgentMessage message;
  if (!json.is_object()) {
    return absl::InvalidArgumentError("agent message is not an object");
  }
  const std::string kind = TextIn(json, "kind");
  for (size_t i = 0; i < kKindNames.size(); ++i) {
    if (kind == kKindNames.at(i)) {
      message.kind = static_cast<Kind>(i);
      message.rank = static_cast<int>(IntegerIn(json, "rank"));
      message.pid = static_cast<int>(IntegerIn(json, "pid"));
      message.step = IntegerIn(json, "step");
      message.collective = static_cast<uint64_t>(IntegerIn(json, "collective"));
      message.exit_code = static_cast<int>(IntegerIn(json, "exit_code"));
      message.phase = TextIn(json, "phase");
      message.text = TextIn(json, "text");
      ReadProgress(json, message);
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

absl::StatusOr<std::string> AgentChannel::Receive(Deadline deadline) {
  std::string text(kOrderMax, '\0');
  while (fd_.valid() && !deadline.Expired()) {
    pollfd entry{fd_.get(), POLLIN, 0};
    if (poll(&entry, 1, deadline.PollTimeoutMs()) <= 0) {
      continue;
    }
    const ssize_t n = recv(fd_.get(), text.data(), text.size(), MSG_DONTWAIT);
    if (n > 0) {
      text.resize(static_cast<size_t>(n));
      return text;
    }
    if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
      return absl::UnavailableError("the agent has gone");
    }
  }
  return absl::DeadlineExceededError("the agent sends no order");
}

std::optional<std::string> AgentChannel::TakeFailure() {
  std::array<char, kFailureMax> text{};
  const ssize_t n =
      fd_.valid() ? recv(fd_.get(), text.data(), text.size(), MSG_DONTWAIT) : ssize_t{-1};
  return n > 0 ? std::optional(std::string(text.data(), static_cast<size_t>(n))) : std::nullopt;
}

}  // namespace dtrain
