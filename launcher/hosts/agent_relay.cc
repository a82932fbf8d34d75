#include "launcher/hosts/agent_relay.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace dtrain::launcher {
namespace {

// Output that waits for the starter. Beyond, the launcher's pipes are not read.
constexpr size_t kWaitingMax = 1U << 20;
constexpr int kTickMs = 500;
// For the last output, when the launcher has ended.
constexpr absl::Duration kDrainTime = absl::Seconds(2);
constexpr int kSendMs = 10'000;

absl::Status MakePipe(UniqueFd& read_end, UniqueFd& write_end) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    return ErrnoStatus(errno, "pipe to the node's launcher");
  }
  read_end = UniqueFd(ends[0]);
  write_end = UniqueFd(ends[1]);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<NodePipes> NodePipes::Create() {
  NodePipes pipes;
  DT_RETURN_IF_ERROR(MakePipe(pipes.out, pipes.out_end_));
  DT_RETURN_IF_ERROR(MakePipe(pipes.err, pipes.err_end_));
  DT_RETURN_IF_ERROR(MakePipe(pipes.serving, pipes.serving_end_));
  return pipes;
}

int NodePipes::EnterNode() {
  const UniqueFd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  dup2(null.get(), STDIN_FILENO);
  dup2(out_end_.get(), STDOUT_FILENO);
  dup2(err_end_.get(), STDERR_FILENO);
  for (UniqueFd* const end : {&out, &err, &serving, &out_end_, &err_end_}) {
    end->reset();
  }
  return serving_end_.get();
}

void NodePipes::LeaveNode() {
  out_end_.reset();
  err_end_.reset();
  serving_end_.reset();
}

absl::StatusOr<int> AgentRelay::Run() {
  int status = 0;
  TakeFrames();  // One may have come together with those before.
  while (true) {
    Wait();
    TakeSignals();
    ReadFrames();
    TakeOutput(parts_.pipes.serving, FrameKind::kServing);
    TakeOutput(parts_.pipes.out, FrameKind::kOut);
    TakeOutput(parts_.pipes.err, FrameKind::kErr);
    to_starter_.Flush();
    const pid_t ended = waitpid(parts_.launcher, &status, WNOHANG);
    if (ended == parts_.launcher) {
      break;
    }
    if (ended < 0 && errno != EINTR) {
      return ErrnoStatus(errno, "waiting for the node's launcher");
    }
  }
  parts_.pipes.serving.reset();
  const Deadline drained = Deadline::After(kDrainTime);
  while ((parts_.pipes.out.valid() || parts_.pipes.err.valid()) && !drained.Expired()) {
    TakeOutput(parts_.pipes.out, FrameKind::kOut);
    TakeOutput(parts_.pipes.err, FrameKind::kErr);
    to_starter_.Flush();
    WaitForOutput(drained);
  }
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  Send(FrameKind::kEnd, absl::StrCat(code));
  to_starter_.Finish(kSendMs);
  return code;
}

void AgentRelay::Wait() {
  const bool takes_output = to_starter_.size() < kWaitingMax;
  std::array<pollfd, 6> entries = {{{parts_.signals.poll_fd(), POLLIN, 0},
                                    {starter_lost_ ? -1 : STDIN_FILENO, POLLIN, 0},
                                    {to_starter_.empty() ? -1 : STDOUT_FILENO, POLLOUT, 0},
                                    {takes_output ? parts_.pipes.serving.get() : -1, POLLIN, 0},
                                    {takes_output ? parts_.pipes.out.get() : -1, POLLIN, 0},
                                    {takes_output ? parts_.pipes.err.get() : -1, POLLIN, 0}}};
  poll(entries.data(), entries.size(), kTickMs);
}

// The launcher has ended. Its signal and the starter's frames are read no more, so that to wait for
// them too would return at once.
void AgentRelay::WaitForOutput(Deadline deadline) {
  const bool takes_output = to_starter_.size() < kWaitingMax;
  std::array<pollfd, 3> entries = {{{to_starter_.empty() ? -1 : STDOUT_FILENO, POLLOUT, 0},
                                    {takes_output ? parts_.pipes.out.get() : -1, POLLIN, 0},
                                    {takes_output ? parts_.pipes.err.get() : -1, POLLIN, 0}}};
  poll(entries.data(), entries.size(), deadline.PollTimeoutMs(kTickMs));
}

void AgentRelay::TakeSignals() {
  for (const int signal : parts_.signals.Take()) {
    if (signal != SIGCHLD) {
      kill(parts_.launcher, signal);
    }
  }
}

void AgentRelay::ReadFrames() {
  if (starter_lost_) {
    return;
  }
  if (!parts_.reader.ReadFrom(STDIN_FILENO)) {
    LoseStarter();
    return;
  }
  TakeFrames();
}

void AgentRelay::TakeFrames() {
  while (true) {
    const absl::StatusOr<std::optional<Frame>> frame = parts_.reader.Next();
    if (!frame.ok()) {
      LoseStarter();
      return;
    }
    if (!frame->has_value()) {
      return;
    }
    int signal = 0;
    if ((*frame)->kind == FrameKind::kSignal && absl::SimpleAtoi((*frame)->payload, &signal) &&
        signal > 0 && signal < NSIG) {
      kill(parts_.launcher, signal);
    }
  }
}

void AgentRelay::LoseStarter() {
  starter_lost_ = true;
  to_starter_.Close();  // The launcher's output is read on, so that it can end.
  kill(parts_.launcher, parts_.stop_signal);
}

// Reads what is there now; closes `from` at its end.
void AgentRelay::TakeOutput(UniqueFd& from, FrameKind kind) {
  std::array<char, 65536> chunk{};
  while (from.valid() && to_starter_.size() < kWaitingMax) {
    pollfd entry{from.get(), POLLIN, 0};
    if (poll(&entry, 1, 0) <= 0) {
      return;
    }
    const ssize_t n = read(from.get(), chunk.data(), chunk.size());
    if (n > 0) {
      Send(kind, absl::string_view(chunk.data(), static_cast<size_t>(n)));
    } else if (n == 0 || errno != EINTR) {
      from.reset();
    }
  }
}

void AgentRelay::Send(FrameKind kind, absl::string_view payload) {
  to_starter_.Add(EncodeFrame(kind, payload));
}

}  // namespace dtrain::launcher
