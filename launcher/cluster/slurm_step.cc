#include "launcher/cluster/slurm_step.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "base/system/own_program.h"
#include "comm/net/job_key.h"
#include "launcher/hosts/ssh_command.h"
#include "launcher/nodes/token.h"
#include "launcher/program.h"
#include "launcher/ranks/signals.h"
#include "launcher/ranks/spawn.h"

namespace dtrain::launcher {
namespace {

// Variables of sbatch and salloc that srun takes for options and that describe one rank. Those that
// have an option in StepCommand are not among them.
constexpr std::array<const char*, 10> kPerRank = {
    "SLURM_CPUS_PER_TASK",   "SRUN_CPUS_PER_TASK",    "SLURM_TRES_PER_TASK",
    "SLURM_GPUS_PER_TASK",   "SLURM_GPU_BIND",        "SLURM_NTASKS_PER_GPU",
    "SLURM_NTASKS_PER_TRES", "SLURM_NTASKS_PER_CORE", "SLURM_NTASKS_PER_SOCKET",
    "SLURM_DISTRIBUTION"};

// The path of srun, where the program is there too.
absl::StatusOr<std::string> FindSrun(const StepRequest& request) {
  const auto path = request.environment.find("PATH");
  const std::string folders = path == request.environment.end() ? "" : path->second;
  DT_RETURN_IF_ERROR(FindProgram(request.options.program, folders).status());
  return FindProgram("srun", folders);
}

// The child's part after fork, by plain system calls only.
[[noreturn]] void RunSrun(const char* srun, const std::vector<char*>& argv,
                          const std::vector<char*>& envp, int input, pid_t parent) {
  setpgid(0, 0);  // The terminal's Ctrl-C is for the launcher, which lets the ranks save.
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) {
    _exit(127);  // The launcher died before the line above.
  }
  // srun waits for its signals and unblocks none; a SIGUSR1 that comes before would end it.
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGUSR1);
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  std::signal(SIGPIPE, SIG_DFL);
  if (input >= 0) {
    dup2(input, STDIN_FILENO);
  }
  execve(srun, argv.data(), envp.data());
  constexpr char kLine[] = "dtrain launch: cannot execute srun\n";
  [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, kLine, sizeof(kLine) - 1);
  _exit(127);
}

// Passes stop signals on to the step. srun itself ends the step at once on SIGTERM and SIGINT, and
// hands SIGUSR1 to its tasks.
class StepSignals {
 public:
  StepSignals(SignalSource& source, pid_t srun) : source_(source), srun_(srun) {}
  void Forward() {
    for (const int signal : source_.Take()) {
      if (signal == SIGCHLD) {
        continue;
      }
      interrupted_ = interrupted_ || signal == SIGINT;
      kill(srun_, stopped_ && signal != SIGUSR1 ? SIGTERM : SIGUSR1);
      stopped_ = stopped_ || signal != SIGUSR1;
    }
  }
  bool interrupted() const { return interrupted_; }

 private:
  SignalSource& source_;
  const pid_t srun_;
  bool stopped_ = false;  // A signal came that asks to stop; SIGUSR1 warns before one.
  bool interrupted_ = false;
};

// Waits for srun's end and gives its exit code, or 128 + the signal that killed it.
absl::StatusOr<int> AwaitStep(SignalSource& source, pid_t srun) {
  StepSignals signals(source, srun);
  int status = 0;
  while (true) {
    const pid_t ended = waitpid(srun, &status, WNOHANG);
    if (ended < 0 && errno != EINTR) {
      return ErrnoStatus(errno, "waiting for srun");
    }
    if (ended == srun) {
      break;
    }
    pollfd entry = {source.poll_fd(), POLLIN, 0};
    poll(&entry, 1, 1000);
    signals.Forward();
  }
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return signals.interrupted() && code == kExitTerminated ? kExitInterrupted : code;
}

}  // namespace

std::vector<std::string> StepCommand(const StepRequest& request, const std::string& srun,
                                     const std::string& dtrain) {
  const LaunchOptions& options = request.options;
  // A job that grows and shrinks starts agents on all nodes that Slurm has given it.
  const bool is_elastic = options.nodes_min < options.nodes && options.place.has_value();
  const int nodes = is_elastic ? options.place->nodes.value : options.nodes;
  std::vector<std::string> command = {srun, absl::StrCat("--nodes=", nodes),
                                      absl::StrCat("--ntasks=", nodes), "--ntasks-per-node=1",
                                      // Ranks are bound by the launcher, within the node's share.
                                      "--cpu-bind=none", "--mpi=none",
                                      // The launchers stop each other, and their ranks save first.
                                      "--kill-on-bad-exit=0", "--wait=0",
                                      // Else sbatch --export=NONE would hold for the ranks too.
                                      "--export=ALL"};
  if (request.options.token_file == kTokenOnInput) {
    command.insert(command.end(), {"--input=all", dtrain, "launch", "--token-file", kTokenOnInput});
  } else {
    command.insert(command.end(), {"--input=none", dtrain, "launch"});
  }
  command.insert(command.end(), request.arguments.begin(), request.arguments.end());
  return command;
}

Environment StepEnvironment(const Environment& environment) {
  Environment kept = environment;
  for (const char* const name : kPerRank) {
    kept.erase(name);
  }
  return kept;
}

std::string DescribeStep(const StepRequest& request, const std::string& srun,
                         const std::string& dtrain) {
  const LaunchOptions& options = request.options;
  std::vector<std::string> command = StepCommand(request, srun, dtrain);
  // The program's own arguments may have such a word too.
  const auto own_end = command.end() - static_cast<ptrdiff_t>(options.arguments.size()) - 1;
  command.erase(std::remove_if(command.begin(), own_end,
                               [](const std::string& word) {
                                 return word == "--dry-run" || word == "--dry_run";
                               }),
                own_end);
  const auto quoted = [](std::string* out, const std::string& word) {
    absl::StrAppend(out, QuoteForShell(word));
  };
  std::vector<std::string> left_out;
  for (const char* const name : kPerRank) {
    if (request.environment.count(name) > 0) {
      left_out.emplace_back(name);
    }
  }
  return absl::StrCat(
      DescribePlace(*options.place, options.nodes, options.node_rank, options.rendezvous),
      "\n  command: ", absl::StrJoin(command, " ", quoted),
      options.token_file == kTokenOnInput ? "\n  sent on its stdin: token (hidden)" : "",
      left_out.empty() ? "" : "\n  left out of its environment: ", absl::StrJoin(left_out, ", "),
      "\n  with --dry-run behind launch, this command shows the ranks of each node\n");
}

absl::StatusOr<std::string> PlanSlurmStep(const StepRequest& request) {
  DT_ASSIGN_OR_RETURN(const std::string srun, FindSrun(request));
  return DescribeStep(request, srun, OwnProgram());
}

absl::StatusOr<int> RunSlurmStep(const StepRequest& request) {
  const LaunchOptions& options = request.options;
  DT_ASSIGN_OR_RETURN(const std::string srun, FindSrun(request));
  UniqueFd token;
  if (options.token_file == kTokenOnInput) {
    DT_ASSIGN_OR_RETURN(const comm::JobKey key, comm::JobKey::Generate());
    DT_ASSIGN_OR_RETURN(token, TokenDescriptor(key));
    lseek(token.get(), 0, SEEK_SET);
  }
  DT_ASSIGN_OR_RETURN(SignalSource signals, SignalSource::Create(options.signals));
  const std::vector<std::string> command = StepCommand(request, srun, OwnProgram());
  std::vector<std::string> variables;
  for (const auto& [name, value] : StepEnvironment(request.environment)) {
    variables.push_back(absl::StrCat(name, "=", value));
  }
  const std::vector<char*> argv = ExecPointers(command);
  const std::vector<char*> envp = ExecPointers(variables);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) {
    return ErrnoStatus(errno, "cannot start srun");
  }
  if (pid == 0) {
    RunSrun(srun.c_str(), argv, envp, token.get(), parent);
  }
  token.reset();
  return AwaitStep(signals, pid);
}

}  // namespace dtrain::launcher
