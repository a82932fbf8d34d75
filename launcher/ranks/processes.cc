#include "launcher/ranks/processes.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/deadline.h"
#include "base/file.h"
#include "launcher/nodes/coordinator_process.h"

namespace dtrain::launcher {

std::vector<pid_t> Children() {
  std::vector<pid_t> children;
  const auto text = ReadFile(absl::StrCat("/proc/self/task/", getpid(), "/children"));
  if (text.ok()) {
    for (const absl::string_view part : absl::StrSplit(*text, ' ', absl::SkipWhitespace())) {
      if (int pid = 0; absl::SimpleAtoi(part, &pid)) {
        children.push_back(pid);
      }
    }
  }
  return children;
}

Processes::~Processes() { RemoveAll(absl::Seconds(1)).IgnoreError(); }

absl::Status Processes::Start(SpawnRequest request, int rank) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // Processes that a rank leaves behind become our children.
  request.guard_fd = guard_.watch_fd();
  DT_ASSIGN_OR_RETURN(const pid_t pid, Spawn(request));
  processes_.push_back({pid, rank});
  return absl::OkStatus();
}

std::vector<RankEnd> Processes::TakeEnds() {
  std::vector<RankEnd> ends;
  for (Process& process : processes_) {
    siginfo_t info{};
    if (process.ended ||
        waitid(P_PID, static_cast<id_t>(process.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == 0) {
      continue;
    }
    process.ended = true;
    RankEnd end;
    end.rank = process.rank;
    end.pid = process.pid;
    (info.si_code == CLD_EXITED ? end.exit_code : end.signal) = info.si_status;
    ends.push_back(end);
  }
  // Among ends seen at the same moment, killed ranks come first: they explain the others.
  std::stable_sort(ends.begin(), ends.end(), [](const RankEnd& a, const RankEnd& b) {
    return (a.signal != 0) > (b.signal != 0);
  });
  return ends;
}

void Processes::Adopt(pid_t pid, int rank) {
  released_.erase(std::remove(released_.begin(), released_.end(), pid), released_.end());
  processes_.push_back({pid, rank});
}

pid_t Processes::Release(int rank) {
  const pid_t pid = PidOf(rank);
  processes_.erase(std::remove_if(processes_.begin(), processes_.end(),
                                  [pid](const Process& process) { return process.pid == pid; }),
                   processes_.end());
  released_.push_back(pid);
  return pid;
}

pid_t Processes::PidOf(int rank) const {
  for (const Process& process : processes_) {
    if (process.rank == rank && !process.ended) {
      return process.pid;
    }
  }
  return -1;
}

void Processes::SignalProcess(const Process& process, int signal) {
  if (!process.ended) {
    kill(-process.pid, signal);
    if (signal != SIGKILL) {
      kill(-process.pid, SIGCONT);  // A stopped rank would not receive the signal.
    }
  }
}

void Processes::Signal(int signal) {
  for (const Process& process : processes_) {
    SignalProcess(process, signal);
  }
}

void Processes::SignalRank(int rank, int signal) {
  for (const Process& process : processes_) {
    if (process.rank == rank) {
      SignalProcess(process, signal);
    }
  }
}

absl::Status Processes::RemoveAll(absl::Duration timeout) {
  const Deadline deadline = Deadline::After(timeout);
  std::vector<pid_t> left;
  while (true) {
    for (Process& process : processes_) {
      if (!process.reaped) {
        kill(-process.pid, SIGKILL);
        process.reaped = waitpid(process.pid, nullptr, WNOHANG) != 0;
        process.ended = process.ended || process.reaped;
      }
    }
    left = Children();
    const pid_t coordinator = CoordinatorPid();  // Behind the list, in which it may be already.
    left.erase(std::remove_if(left.begin(), left.end(),
                              [this, coordinator](pid_t pid) {
                                return pid == guard_.pid() || pid == coordinator ||
                                       std::find(released_.begin(), released_.end(), pid) !=
                                           released_.end();
                              }),
               left.end());
    for (const pid_t pid : left) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, WNOHANG);
    }
    if (left.empty() || deadline.Expired()) {
      break;
    }
    Clock::Real().Sleep(absl::Milliseconds(1));
  }
  for (const Process& process : processes_) {
    if (process.reaped && left.empty()) {
      guard_.Forget(process.pid);
    }
  }
  if (left.empty()) {
    processes_.clear();
    return absl::OkStatus();
  }
  return absl::DeadlineExceededError(
      absl::StrCat("processes do not end, perhaps because they wait for a disk or a device: pid ",
                   absl::StrJoin(left, ", ")));
}

int Processes::alive() const { return static_cast<int>(AliveRanks().size()); }

std::vector<int> Processes::AliveRanks() const {
  std::vector<int> ranks;
  for (const Process& process : processes_) {
    if (!process.ended) {
      ranks.push_back(process.rank);
    }
  }
  return ranks;
}

}  // namespace dtrain::launcher
