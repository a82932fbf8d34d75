#include "launcher/hosts/host_link.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/job_env.h"
#include "base/status.h"
#include "launcher/rank_plan.h"
#include "launcher/ranks/rank_end.h"
#include "launcher/ranks/spawn.h"

namespace dtrain::launcher {
namespace {

constexpr size_t kSaidMax = 8192;
constexpr size_t kLineMax = 64U << 10;  // Longer lines are shown in parts.

// The two ends of a pipe to a child's stdin (`child_reads`), stdout or stderr.
struct ChildPipe {
  UniqueFd ours;
  UniqueFd childs;

  absl::Status Open(bool child_reads) {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) {
      return ErrnoStatus(errno, "pipe to the process of a host");
    }
    ours = UniqueFd(ends[child_reads ? 1 : 0]);
    childs = UniqueFd(ends[child_reads ? 0 : 1]);
    return absl::OkStatus();
  }
};

// Starts `command` in a session of its own, so that the terminal's Ctrl-C does not reach it and ssh
// has no terminal to ask questions on.
absl::StatusOr<pid_t> SpawnCommand(const std::vector<std::string>& command, int in, int out,
                                   int err) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t signals;
  sigemptyset(&signals);
  posix_spawnattr_setsigmask(&attributes, &signals);
  sigaddset(&signals, SIGPIPE);
  posix_spawnattr_setsigdefault(&attributes, &signals);
  posix_spawnattr_setflags(
      &attributes,
      static_cast<short>(POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF));
  const std::vector<std::string> variables = EnvironmentEntries(ReadEnvironment());
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, command.front().c_str(), &actions, &attributes,
                                 ExecPointers(command).data(), ExecPointers(variables).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    return ErrnoStatus(error,
                       absl::StrCat("cannot run ", command.front(),
                                    error == ENOENT ? " (is openssh-client installed?)" : ""));
  }
  return pid;
}

// Reads what is there now. False: the stream has ended.
bool ReadNow(int fd, std::string& text) {
  std::array<char, 65536> chunk{};
  pollfd entry{fd, POLLIN, 0};
  if (poll(&entry, 1, 0) <= 0) {
    return true;
  }
  const ssize_t n = read(fd, chunk.data(), chunk.size());
  if (n > 0) {
    text.append(chunk.data(), static_cast<size_t>(n));
  }
  return n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN));
}

}  // namespace

absl::Status HostLink::Start(absl::string_view token) {
  ChildPipe in;
  ChildPipe out;
  ChildPipe err;
  DT_RETURN_IF_ERROR(in.Open(true));
  DT_RETURN_IF_ERROR(out.Open(false));
  DT_RETURN_IF_ERROR(err.Open(false));
  DT_ASSIGN_OR_RETURN(
      pid_, SpawnCommand(plan_.command, in.childs.get(), out.childs.get(), err.childs.get()));
  in_ = std::move(in.ours);
  out_ = std::move(out.ours);
  err_ = std::move(err.ours);
  to_agent_ = ByteQueue(in_.get());
  plan_.job.token = std::string(token);
  to_agent_.Add(EncodeFrame(FrameKind::kJob, plan_.job.Encode()));
  state_ = State::kGreeting;
  return absl::OkStatus();
}

void HostLink::Meet(absl::string_view endpoint) {
  if (state_ == State::kReady) {
    to_agent_.Add(EncodeFrame(FrameKind::kMeet, endpoint));
    state_ = State::kMet;
  }
}

void HostLink::SendSignal(int signal) {
  to_agent_.Add(EncodeFrame(FrameKind::kSignal, absl::StrCat(signal)));
}

void HostLink::HangUp() {
  to_agent_.Close();
  in_.reset();
}

void HostLink::Kill() const {
  if (pid_ > 0 && state_ != State::kEnded) {
    kill(-pid_, SIGKILL);  // Its session, for ssh may have started a ProxyCommand.
  }
}

void HostLink::Move(StarterConsole& console) {
  if (to_agent_.Flush(); to_agent_.broken()) {
    HangUp();
  }
  const bool has_room = console.HasRoom();
  if (out_.valid() && has_room) {
    ReadFrames(console);
  }
  if (err_.valid() && has_room) {
    ReadErrors(console);
  }
}

void HostLink::ReadFrames(StarterConsole& console) {
  std::string text;
  if (!ReadNow(out_.get(), text)) {
    out_.reset();
  }
  reader_.Add(text);
  while (refused_.empty()) {
    const absl::StatusOr<std::optional<Frame>> frame = reader_.Next();
    if (!frame.ok()) {
      refused_ = std::string(frame.status().message());
      Kill();
      return;
    }
    if (!frame->has_value()) {
      return;
    }
    TakeFrame(**frame, console);
  }
}

void HostLink::TakeFrame(const Frame& frame, StarterConsole& console) {
  switch (frame.kind) {
    case FrameKind::kHello: {
      const absl::StatusOr<HelloMessage> hello = HelloMessage::Parse(frame.payload);
      if (!hello.ok() || state_ != State::kGreeting) {
        refused_ = hello.ok() ? "a second greeting" : std::string(hello.status().message());
        Kill();
        return;
      }
      hello_ = *hello;
      said_.clear();  // Warnings of ssh that kept it from nothing.
      state_ = State::kReady;
      return;
    }
    case FrameKind::kServing:
      serving_ = serving_.empty() ? frame.payload : serving_;
      return;
    case FrameKind::kOut:
      if (is_first()) {
        console.out.Add(frame.payload);
      } else {
        ShowLines(frame.payload, out_rest_, console);
      }
      return;
    case FrameKind::kErr:
      if (is_first()) {
        console.err.Add(frame.payload);
      } else {
        ShowLines(frame.payload, err_rest_, console);
      }
      return;
    case FrameKind::kEnd: {
      int code = 0;
      if (absl::SimpleAtoi(frame.payload, &code) && code >= 0 && code < 256) {
        exit_code_ = code;
      }
      return;
    }
    case FrameKind::kJob:
    case FrameKind::kMeet:
    case FrameKind::kSignal:
      return;  // An agent does not send these.
  }
}

void HostLink::ReadErrors(StarterConsole& console) {
  std::string text;
  if (!ReadNow(err_.get(), text)) {
    err_.reset();
  }
  said_.append(text);
  if (said_.size() > kSaidMax) {
    said_.erase(0, said_.size() - kSaidMax);
  }
  // Before the agent answers, this is the reason why it does not, and is told with the others'.
  if (state_ != State::kGreeting) {
    ShowLines(text, said_rest_, console);
  }
}

// Shows the whole lines of `rest` and `text`, and leaves the last part in `rest`.
void HostLink::ShowLines(absl::string_view text, std::string& rest, StarterConsole& console) const {
  rest.append(text.data(), text.size());
  size_t from = 0;
  for (size_t end = rest.find('\n'); end != std::string::npos; end = rest.find('\n', from)) {
    console.err.Add(absl::StrCat("[", plan_.host, "] ", rest.substr(from, end + 1 - from)));
    from = end + 1;
  }
  rest.erase(0, from);
  if (rest.size() > kLineMax) {
    console.err.Add(absl::StrCat("[", plan_.host, "] ", rest, "\n"));
    rest.clear();
  }
}

void HostLink::ShowRests(StarterConsole& console) {
  for (std::string* const rest : {&out_rest_, &err_rest_, &said_rest_}) {
    if (!rest->empty()) {
      ShowLines("\n", *rest, console);
    }
  }
}

bool HostLink::TakeEnd(StarterConsole& console) {
  if (pid_ <= 0 || state_ == State::kEnded || waitpid(pid_, &wait_status_, WNOHANG) != pid_) {
    return false;
  }
  // A process that ssh left behind (ControlPersist) may keep stderr open, so its end is not
  // awaited.
  for (pollfd entry{out_.get(), POLLIN, 0}; out_.valid() && poll(&entry, 1, 0) > 0;) {
    ReadFrames(console);
  }
  if (err_.valid()) {
    ReadErrors(console);
  }
  ShowRests(console);
  HangUp();
  out_.reset();
  err_.reset();
  state_ = State::kEnded;
  return true;
}

std::string HostLink::Why() const {
  if (!refused_.empty()) {
    return refused_;
  }
  const std::vector<std::string> lines = absl::StrSplit(said_, '\n', absl::SkipWhitespace());
  if (!lines.empty()) {
    return std::string(absl::StripAsciiWhitespace(lines.back()));
  }
  if (state_ != State::kEnded) {
    return "no answer in time";
  }
  return WIFEXITED(wait_status_)
             ? absl::StrFormat("%s ended with exit code %d and without a message",
                               plan_.command.front(), WEXITSTATUS(wait_status_))
             : absl::StrFormat("%s was killed by %s", plan_.command.front(),
                               SignalName(WTERMSIG(wait_status_)));
}

}  // namespace dtrain::launcher
