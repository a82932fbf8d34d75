#include "launcher/ranks/spawn.h"

#include <fcntl.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"
#include "base/system/ignored_signal.h"
#include "base/system/resource_limits.h"

namespace dtrain::launcher {
namespace {

// Everything that the child needs, made before fork, because afterwards only plain system calls are
// safe.
struct ChildPlan {
  const char* program;
  std::vector<char*> argv;
  std::vector<char*> envp;
  bool ignore_usr1 = false;
  bool bind = false;
  cpu_set_t cpus;
  // A bit for each NUMA node, as set_mempolicy takes them; all 0: not set.
  std::array<unsigned long, 16> memory_nodes = {};
  bool prefer_memory = false;
  pid_t parent;
  // Descriptors above 9, so that placing them at 0 to 4 overwrites none.
  int in = -1;
  int out = -1;
  int err = -1;
  int token = -1;
  int guard = -1;
  int report = -1;  // The pipe to which the child writes errno when it cannot execute the program.
};

constexpr int kReportFd = 4;

[[noreturn]] void RunChild(const ChildPlan& plan) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != plan.parent) {
    _exit(127);  // The launcher died before the line above.
  }
  if (plan.guard >= 0) {
    const pid_t group = getpid();
    [[maybe_unused]] const ssize_t told = write(plan.guard, &group, sizeof(group));
  }
  for (int signal = 1; signal < NSIG; ++signal) {
    if (signal != SIGHUP || !IsIgnored(SIGHUP)) {  // SIGHUP stays ignored under nohup.
      std::signal(signal, SIG_DFL);
    }
  }
  if (plan.ignore_usr1) {
    std::signal(SIGUSR1, SIG_IGN);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (plan.bind) {
    // An error is ignored: an unbound rank is slower but correct.
    sched_setaffinity(0, sizeof(plan.cpus), &plan.cpus);
  }
  if (plan.prefer_memory) {
    // An error is ignored here too: containers may forbid the call.
    syscall(SYS_set_mempolicy, MPOL_PREFERRED, plan.memory_nodes.data(),
            8 * sizeof(plan.memory_nodes));
  }
  dup2(plan.in, 0);
  dup2(plan.out, 1);
  dup2(plan.err, 2);
  if (plan.token >= 0) {
    dup2(plan.token, kTokenFdInRank);
  } else {
    close(kTokenFdInRank);
  }
  dup2(plan.report, kReportFd);
  fcntl(kReportFd, F_SETFD, FD_CLOEXEC);
  syscall(SYS_close_range, static_cast<unsigned>(kReportFd) + 1, ~0U, 0U);
  execve(plan.program, plan.argv.data(), plan.envp.data());
  const int error = errno;
  [[maybe_unused]] const ssize_t n = write(kReportFd, &error, sizeof(error));
  _exit(127);
}

absl::StatusOr<UniqueFd> OpenHigh(const std::string& path, int flags) {
  DT_ASSIGN_OR_RETURN(const UniqueFd fd, OpenFile(path, flags));
  UniqueFd high(fcntl(fd.get(), F_DUPFD_CLOEXEC, 10));
  if (!high.valid()) {
    return ErrnoStatus(errno, absl::StrCat("cannot open ", path));
  }
  return high;
}

// Waits until the child has executed its program (end of file) or says why not.
absl::Status AwaitExec(int fd, pid_t pid, const std::string& program) {
  int error = 0;
  ssize_t n = 0;
  do {
    n = read(fd, &error, sizeof(error));
  } while (n < 0 && errno == EINTR);
  if (n != sizeof(error)) {
    return absl::OkStatus();
  }
  waitpid(pid, nullptr, 0);
  const std::string hint =
      error == ENOEXEC  ? " (no program for this machine, or a script without #! line)"
      : error == ENOENT ? " (the interpreter of its #! line or its loader is missing)"
                        : "";
  return ErrnoStatus(error, absl::StrCat("cannot execute ", program, hint));
}

}  // namespace

std::vector<char*> ExecPointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) {
    pointers.push_back(const_cast<char*>(text.c_str()));  // execve does not write to them.
  }
  pointers.push_back(nullptr);
  return pointers;
}

absl::StatusOr<pid_t> Spawn(const SpawnRequest& request) {
  constexpr int kAppend = O_WRONLY | O_CREAT | O_APPEND;
  DT_ASSIGN_OR_RETURN(const UniqueFd in, OpenHigh("/dev/null", O_RDONLY));
  DT_ASSIGN_OR_RETURN(const UniqueFd out, OpenHigh(request.out_path, kAppend));
  DT_ASSIGN_OR_RETURN(const UniqueFd err, OpenHigh(request.err_path, kAppend));
  UniqueFd token;
  // The file is opened anew, so that each rank has its own offset and cannot write.
  if (request.token_fd >= 0) {
    DT_ASSIGN_OR_RETURN(token,
                        OpenHigh(absl::StrCat("/proc/self/fd/", request.token_fd), O_RDONLY));
  }
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    return ErrnoStatus(errno, "pipe to a rank");
  }
  UniqueFd report_read(ends[0]);
  UniqueFd report_low(ends[1]);
  UniqueFd report(fcntl(report_low.get(), F_DUPFD_CLOEXEC, 10));
  report_low.reset();

  std::vector<std::string> argv = {request.name};
  argv.insert(argv.end(), request.arguments.begin(), request.arguments.end());
  ChildPlan plan{};
  plan.program = request.program.c_str();
  plan.argv = ExecPointers(argv);
  plan.envp = ExecPointers(request.environment);
  // Where SIGUSR1 asks this launcher to stop, Slurm sends it to the ranks too, which it would kill.
  sigset_t blocked;
  sigprocmask(SIG_BLOCK, nullptr, &blocked);
  plan.ignore_usr1 = sigismember(&blocked, SIGUSR1) == 1;
  plan.bind = !request.cpus.empty();
  CPU_ZERO(&plan.cpus);
  for (const int cpu : request.cpus) {
    CPU_SET(static_cast<size_t>(cpu), &plan.cpus);
  }
  if (request.memory_node >= 0 && request.memory_node < 1024) {
    const auto node = static_cast<size_t>(request.memory_node);
    plan.memory_nodes.at(node / 64) = 1UL << (node % 64);
    plan.prefer_memory = true;
  }
  plan.parent = getpid();
  plan.in = in.get();
  plan.out = out.get();
  plan.err = err.get();
  plan.token = token.get();
  plan.guard = request.guard_fd;
  plan.report = report.get();

  const pid_t pid = fork();
  if (pid < 0) {
    return CannotStart("a rank", errno);
  }
  if (pid == 0) {
    RunChild(plan);
  }
  // The child does the same; here it ensures that the group exists before anyone signals it.
  setpgid(pid, pid);
  report.reset();
  DT_RETURN_IF_ERROR(AwaitExec(report_read.get(), pid, request.program));
  return pid;
}

}  // namespace dtrain::launcher
