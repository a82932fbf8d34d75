#include "launcher/ranks/guard.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <set>

#include "base/status.h"
#include "base/system/resource_limits.h"
#include "launcher/temp_dir.h"

namespace dtrain::launcher {
namespace {

constexpr pid_t kAllIsWell = 0;

// Runs the guard process to its end. Messages: a positive number watches a group, a negative one
// forgets it.
[[noreturn]] void WatchLauncher(int pipe, const std::string& folder) {
  // Protects the guard from the terminal's Ctrl-C and from kills of the launcher's group.
  setsid();
  prctl(PR_SET_NAME, "dtrain-guard");
  for (int signal = 1; signal < NSIG; ++signal) {
    std::signal(signal, SIG_IGN);
  }
  const int null = open("/dev/null", O_RDWR);
  for (const int fd : {0, 1, 2}) {
    dup2(null, fd);
  }
  dup2(pipe, 3);
  syscall(SYS_close_range, 4U, ~0U, 0U);
  std::set<pid_t> groups;
  pid_t message = 0;
  while (true) {
    const ssize_t n = read(3, &message, sizeof(message));
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n == sizeof(message) && message == kAllIsWell) {
      _exit(0);
    }
    if (n != sizeof(message)) {
      break;  // The launcher died.
    }
    if (message > 0) {
      groups.insert(message);
    } else {
      groups.erase(-message);
    }
  }
  for (const pid_t group : groups) {
    kill(-group, SIGKILL);
  }
  RemoveTempDir(folder);
  _exit(0);
}

}  // namespace

absl::StatusOr<Guard> Guard::Start(const std::string& folder) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return ErrnoStatus(errno, "pipe to the guard process");
  }
  UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  const pid_t pid = fork();
  if (pid < 0) {
    return CannotStart("the guard process", errno);
  }
  if (pid == 0) {
    write_end.reset();
    WatchLauncher(read_end.get(), folder);
  }
  return Guard(std::move(write_end), pid);
}

Guard::~Guard() {
  if (pipe_.valid()) {
    Send(kAllIsWell);
    pipe_.reset();
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
}

void Guard::Send(pid_t message) {
  // A pipe takes 4 bytes whole. A guard that has ended needs no message.
  [[maybe_unused]] const ssize_t n = write(pipe_.get(), &message, sizeof(message));
}

}  // namespace dtrain::launcher
