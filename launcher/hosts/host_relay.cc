#include "launcher/hosts/host_relay.h"

#include <poll.h>
#include <unistd.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/system/own_program.h"
#include "base/system/resource_limits.h"
#include "launcher/hosts/ssh_command.h"

namespace dtrain::launcher {
namespace {

// Output that waits for the starter. Beyond, the processes are not read.
constexpr size_t kRelayedMax = 1U << 20;
constexpr int kRelayTurnMs = 500;
constexpr uint64_t kFilesOfProcess = 3;
// The wait status of a command that could not be run, as a shell gives it.
constexpr int kNotRun = 127 << 8;

}  // namespace

void HostRelay::Run() {
  TakeFrames();  // Some may have come together with the first.
  while (!starter_lost_ || !processes_.empty()) {
    Wait();
    signals_.Take();  // SIGCHLD has ended the wait.
    ReadFrames();
    MoveProcesses();
    if (to_starter_.Flush(); to_starter_.broken() && !starter_lost_) {
      LoseStarter();
    }
  }
}

void HostRelay::Wait() {
  std::vector<pollfd> entries = {{signals_.poll_fd(), POLLIN, 0},
                                 {starter_lost_ ? -1 : STDIN_FILENO, POLLIN, 0},
                                 {to_starter_.empty() ? -1 : to_starter_.fd(), POLLOUT, 0}};
  for (const auto& [channel, process] : processes_) {
    process->AddTo(entries, to_starter_.size() < kRelayedMax);
  }
  poll(entries.data(), entries.size(), kRelayTurnMs);
}

void HostRelay::ReadFrames() {
  if (starter_lost_) {
    return;
  }
  if (!reader_.ReadFrom(STDIN_FILENO)) {
    LoseStarter();
    return;
  }
  TakeFrames();
}

void HostRelay::TakeFrames() {
  while (true) {
    const absl::StatusOr<std::optional<Frame>> frame = reader_.Next();
    if (frame.ok() && !frame->has_value()) {
      return;
    }
    const absl::StatusOr<ChannelMessage> message =
        frame.ok() ? ChannelMessage::Parse((*frame)->payload) : frame.status();
    if (!message.ok()) {
      LoseStarter();
      return;
    }
    Take(*message);
  }
}

void HostRelay::Take(const ChannelMessage& message) {
  if (message.event == ChannelEvent::kOpen) {
    const std::vector<std::string> words = WordsOf(message.bytes);
    AllowOpenFiles(kFilesOfProcess);
    absl::StatusOr<std::unique_ptr<AgentProcess>> started =
        LocalProcess::Start(words.empty() ? LocalCommand(OwnProgram()) : words);
    if (started.ok()) {
      processes_[message.channel] = *std::move(started);
    } else {
      Send(message.channel, ChannelEvent::kErr, absl::StrCat(started.status().message(), "\n"));
      Send(message.channel, ChannelEvent::kEnd, absl::StrCat(kNotRun));
    }
    return;
  }
  const auto found = processes_.find(message.channel);
  if (found == processes_.end()) {
    return;  // It has just ended.
  }
  if (message.event == ChannelEvent::kInput) {
    found->second->Write(message.bytes);
  } else if (message.event == ChannelEvent::kInputEnd) {
    found->second->CloseInput();
  } else if (message.event == ChannelEvent::kKill) {
    found->second->Kill();
  }
}

// Sends what the processes have written, and how they ended.
void HostRelay::MoveProcesses() {
  // Asked once, so that one that writes much does not keep those behind it from being read.
  const bool may_read = to_starter_.size() < kRelayedMax;
  for (auto at = processes_.begin(); at != processes_.end();) {
    std::string out;
    std::string err;
    at->second->Move(may_read, out, err);
    const std::optional<ProcessEnd> end = at->second->TakeEnd(out, err);
    Send(at->first, ChannelEvent::kOut, out);
    Send(at->first, ChannelEvent::kErr, err);
    if (end.has_value()) {
      Send(at->first, ChannelEvent::kEnd, absl::StrCat(end->wait_status));
      at = processes_.erase(at);
    } else {
      ++at;
    }
  }
}

void HostRelay::LoseStarter() {
  starter_lost_ = true;
  to_starter_.Close();  // The processes' output is read on, so that they can end.
  for (const auto& [channel, process] : processes_) {
    process->CloseInput();
  }
}

void HostRelay::Send(uint32_t channel, ChannelEvent event, const std::string& bytes) {
  if (!bytes.empty()) {
    to_starter_.Add(ChannelMessage{channel, event, bytes}.ToFrame());
  }
}

}  // namespace dtrain::launcher
