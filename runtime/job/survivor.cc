#include "runtime/job/survivor.h"

#include <fcntl.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/next_attempt.h"
#include "base/status.h"

namespace dtrain {
namespace {

// The agent ends a process for which there is no next attempt; this is for one that forgets it.
constexpr absl::Duration kOrderTime = absl::Minutes(10);

AgentMessage MessageOf(AgentMessage::Kind kind, const JobEnv& job) {
  return {.kind = kind, .rank = job.rank, .pid = getpid()};
}

absl::Status Redirect(int fd, const std::string& path) {
  DT_ASSIGN_OR_RETURN(const UniqueFd file, OpenFile(path, O_WRONLY | O_CREAT | O_APPEND));
  return dup2(file.get(), fd) == fd ? absl::OkStatus() : ErrnoStatus(errno, path);
}

// A process that was started without a place has only this thread, and threads that it starts later
// inherit what is set here. An error is ignored, as for a new process: unbound it is right, but
// slower.
void Bind(const std::vector<int>& cpus, int memory_node) {
  if (!cpus.empty()) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int cpu : cpus) {
      if (cpu >= 0 && cpu < CPU_SETSIZE) {
        CPU_SET(static_cast<size_t>(cpu), &set);
      }
    }
    sched_setaffinity(0, sizeof(set), &set);
  }
  std::array<unsigned long, 16> nodes = {};
  if (memory_node >= 0 && memory_node < 1024) {
    const auto node = static_cast<size_t>(memory_node);
    nodes.at(node / 64) = 1UL << (node % 64);
    syscall(SYS_set_mempolicy, MPOL_PREFERRED, nodes.data(), 8 * sizeof(nodes));
  }
}

// No other thread reads the environment now: those of the job have ended, and LibTorch's wait.
absl::Status TakeOver(const NextAttempt& next) {
  for (const auto& [name, value] : next.environment) {
    if (setenv(name.c_str(), value.c_str(), /*overwrite=*/1) != 0) {
      return ErrnoStatus(errno, absl::StrCat("cannot set the variable ", name));
    }
  }
  Bind(next.cpus, next.memory_node);
  std::fflush(nullptr);
  std::cout.flush();
  DT_RETURN_IF_ERROR(Redirect(STDOUT_FILENO, next.out_path));
  return Redirect(STDERR_FILENO, next.err_path);
}

}  // namespace

Survivor::Survivor(const Environment& environment) {
  // This holds also if the agent cannot be reached: else the process would train alone in the job's
  // run directory.
  is_reserve_ = IsReserve(environment);
  const absl::StatusOr<JobEnv> job = ResolveJobEnv(environment);
  if (!job.ok() || !job->reuse || job->agent_socket.empty() || job->token_fd < 0) {
    return;
  }
  token_.reset(fcntl(job->token_fd, F_DUPFD_CLOEXEC, job->token_fd + 1));
  absl::StatusOr<AgentChannel> agent = AgentChannel::Connect(job->agent_socket);
  if (token_.valid() && agent.ok()) {
    agent_ = *std::move(agent);
    agent_.Send(MessageOf(AgentMessage::Kind::kCanStay, *job));
  }
  if (is_reserve_) {
    close(job->token_fd);  // Its first job gets another one, as later ones do.
  }
}

// Under another number, because something that lives longer than a job may have the first one.
absl::Status Survivor::OfferToken() const {
  const int fd = fcntl(token_.get(), F_DUPFD_CLOEXEC, 3);
  if (fd < 0 || lseek(fd, 0, SEEK_SET) != 0 ||
      setenv(env::kTokenFd, absl::StrCat(fd).c_str(), /*overwrite=*/1) != 0) {
    return ErrnoStatus(errno, "the job's token for the next attempt");
  }
  return absl::OkStatus();
}

absl::Status Survivor::AwaitNextAttempt(int exit_code) {
  DT_ASSIGN_OR_RETURN(const JobEnv job, ResolveJobEnv(ReadEnvironment()));
  AgentMessage stays = MessageOf(AgentMessage::Kind::kStays, job);
  stays.exit_code = exit_code;
  const uint64_t dropped = agent_.dropped();
  agent_.Send(stays);
  if (agent_.dropped() != dropped) {
    return absl::UnavailableError("the agent does not hear that this rank stays");
  }
  return AwaitOrder(Deadline::After(kOrderTime));
}

// The agent ends it when it is of no use any more.
absl::Status Survivor::AwaitFirstAttempt() { return AwaitOrder(Deadline::Infinite()); }

absl::Status Survivor::AwaitOrder(Deadline deadline) {
  DT_ASSIGN_OR_RETURN(const std::string order, agent_.Receive(deadline));
  if (order == kEndOrder) {
    return absl::CancelledError("the launcher ends this process");
  }
  DT_ASSIGN_OR_RETURN(const NextAttempt next, NextAttempt::Parse(order));
  DT_RETURN_IF_ERROR(TakeOver(next));
  return OfferToken();
}

}  // namespace dtrain
