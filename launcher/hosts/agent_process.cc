#include "launcher/hosts/agent_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <utility>

#include "absl/strings/ascii.h"
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

bool IsReadable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return poll(&entry, 1, 0) > 0;
}

// Reads what is there now, and closes `fd` at the end of its stream.
void ReadNow(UniqueFd& fd, std::string& text) {
  if (!fd.valid() || !IsReadable(fd.get())) {
    return;
  }
  std::array<char, 65536> chunk{};
  const ssize_t n = read(fd.get(), chunk.data(), chunk.size());
  if (n > 0) {
    text.append(chunk.data(), static_cast<size_t>(n));
  } else if (n == 0 || (errno != EINTR && errno != EAGAIN)) {
    fd.reset();
  }
}

// Reads what a process that has ended left in a pipe. One that it has started may write on, so more
// than a pipe holds is not read.
void ReadRest(UniqueFd& fd, std::string& text) {
  constexpr size_t kPipeBytesMax = 1U << 20;
  const size_t end = text.size() + kPipeBytesMax;
  while (fd.valid() && text.size() < end && IsReadable(fd.get())) {
    ReadNow(fd, text);
  }
}

}  // namespace

LocalProcess::LocalProcess(pid_t pid, UniqueFd in, UniqueFd out, UniqueFd err)
    : pid_(pid),
      in_(std::move(in)),
      out_(std::move(out)),
      err_(std::move(err)),
      to_agent_(in_.get()) {}

absl::StatusOr<std::unique_ptr<AgentProcess>> LocalProcess::Start(
    const std::vector<std::string>& command) {
  ChildPipe in;
  ChildPipe out;
  ChildPipe err;
  DT_RETURN_IF_ERROR(in.Open(true));
  DT_RETURN_IF_ERROR(out.Open(false));
  DT_RETURN_IF_ERROR(err.Open(false));
  DT_ASSIGN_OR_RETURN(const pid_t pid,
                      SpawnCommand(command, in.childs.get(), out.childs.get(), err.childs.get()));
  return std::unique_ptr<AgentProcess>(
      new LocalProcess(pid, std::move(in.ours), std::move(out.ours), std::move(err.ours)));
}

void LocalProcess::CloseInput() {
  to_agent_.Close();
  in_.reset();
}

void LocalProcess::Kill() {
  if (pid_ > 0) {
    kill(-pid_, SIGKILL);  // Its session, for ssh may have started a ProxyCommand.
  }
}

void LocalProcess::Move(bool may_read, std::string& out, std::string& err) {
  if (to_agent_.Flush(); to_agent_.broken()) {
    CloseInput();
  }
  if (may_read) {
    ReadNow(out_, out);
    ReadNow(err_, err);
  }
}

std::optional<ProcessEnd> LocalProcess::TakeEnd(std::string& out, std::string& err) {
  ProcessEnd end;
  if (pid_ <= 0 || waitpid(pid_, &end.wait_status, WNOHANG) != pid_) {
    return std::nullopt;
  }
  pid_ = -1;
  // A process that ssh left behind (ControlPersist) may keep stderr open, so the end of the stream
  // is not awaited.
  ReadRest(out_, out);
  ReadRest(err_, err);
  CloseInput();
  out_.reset();
  err_.reset();
  return end;
}

void LocalProcess::AddTo(std::vector<pollfd>& entries, bool may_read) const {
  entries.push_back({may_read ? out_.get() : -1, POLLIN, 0});
  entries.push_back({may_read ? err_.get() : -1, POLLIN, 0});
  entries.push_back({to_agent_.empty() ? -1 : in_.get(), POLLOUT, 0});
}

std::string DescribeSilence(const std::string& program, const std::string& said,
                            const std::optional<ProcessEnd>& end) {
  if (end.has_value() && !end->why_lost.empty()) {
    return end->why_lost;
  }
  const std::vector<std::string> lines = absl::StrSplit(said, '\n', absl::SkipWhitespace());
  if (!lines.empty()) {
    return std::string(absl::StripAsciiWhitespace(lines.back()));
  }
  if (!end.has_value()) {
    return "no answer in time";
  }
  return WIFEXITED(end->wait_status)
             ? absl::StrFormat("%s ended with exit code %d and without a message", program,
                               WEXITSTATUS(end->wait_status))
             : absl::StrFormat("%s was killed by %s", program,
                               SignalName(WTERMSIG(end->wait_status)));
}

}  // namespace dtrain::launcher
