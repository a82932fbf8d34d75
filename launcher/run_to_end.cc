#include "launcher/run_to_end.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "launcher/ranks/spawn.h"

namespace dtrain::launcher {
namespace {

std::string ReadToEnd(int fd) {
  std::string text;
  std::array<char, 4096> chunk{};
  for (;;) {
    const ssize_t n = read(fd, chunk.data(), chunk.size());
    if (n > 0) {
      text.append(chunk.data(), static_cast<size_t>(n));
    } else if (n == 0 || errno != EINTR) {
      return text;
    }
  }
}

// With `text`, what the program writes to `stream` is stored there, and its other output is
// dropped.
absl::StatusOr<int> RunAndRead(const std::vector<std::string>& command,
                               const Environment& environment, int stream, std::string* text) {
  std::vector<std::string> variables;
  for (const auto& [name, value] : environment) {
    variables.push_back(absl::StrCat(name, "=", value));
  }
  UniqueFd ours;
  UniqueFd theirs;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (text != nullptr) {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) {
      posix_spawn_file_actions_destroy(&actions);
      return ErrnoStatus(errno, "cannot make a pipe");
    }
    ours = UniqueFd(ends[0]);
    theirs = UniqueFd(ends[1]);
    const int other = stream == STDOUT_FILENO ? STDERR_FILENO : STDOUT_FILENO;
    posix_spawn_file_actions_addopen(&actions, other, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, theirs.get(), stream);
  }
  pid_t pid = 0;
  const int error = posix_spawn(&pid, command[0].c_str(), &actions, nullptr,
                                ExecPointers(command).data(), ExecPointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    return absl::NotFoundError(absl::StrFormat("cannot run %s: %s; install dtrain again",
                                               command[0], std::strerror(error)));
  }
  if (text != nullptr) {
    theirs.reset();
    *text = ReadToEnd(ours.get());
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

absl::StatusOr<int> RunToEnd(const std::vector<std::string>& command,
                             const Environment& environment, std::string* errors) {
  return RunAndRead(command, environment, STDERR_FILENO, errors);
}

absl::StatusOr<std::string> OutputOf(const std::vector<std::string>& command,
                                     const Environment& environment) {
  std::string text;
  DT_ASSIGN_OR_RETURN(const int code, RunAndRead(command, environment, STDOUT_FILENO, &text));
  return code == 0 ? absl::StatusOr<std::string>(std::move(text))
                   : absl::UnavailableError(
                         absl::StrFormat("%s ended with exit code %d", command[0], code));
}

}  // namespace dtrain::launcher
