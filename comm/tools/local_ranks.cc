#include "comm/tools/local_ranks.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "comm/net/job_key.h"
#include "comm/net/store_client.h"
#include "comm/net/store_server.h"

namespace dtrain::comm {
namespace {

constexpr absl::Duration kConnect = absl::Seconds(30);

// Runs the child process to its end. `go` gives the store's port.
[[noreturn]] void RunChild(int rank, int ranks, const JobKey& key, const RankFunction& function,
                           int go) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  SetLogRank(rank);
  int port = 0;
  if (read(go, &port, sizeof(port)) != sizeof(port)) {
    _exit(kExitTemporary);  // The parent ended before the child started.
  }
  GroupOptions options;
  options.rank = rank;
  options.size = ranks;
  options.node_id = "this host";
  options.host_address = "127.0.0.1";
  const auto secret = key.secret_bytes();
  options.job_key.assign(reinterpret_cast<const char*>(secret.data()), secret.size());
  const auto run = [&]() -> absl::Status {
    const Hello hello{.role = Hello::Role::kRank, .id = rank, .name = "rank"};
    DT_ASSIGN_OR_RETURN(const auto store, StoreClient::Connect({"127.0.0.1", port}, key, hello,
                                                               Deadline::After(kConnect)));
    return function(options, *store);
  };
  const absl::Status status = run();
  if (!status.ok()) {
    std::fprintf(stderr, "rank %d: %s\n", rank, std::string(status.message()).c_str());
  }
  std::fflush(nullptr);
  _exit(ExitCodeFor(status));
}

// The children that were started; the destructor kills those that are left.
class Children {
 public:
  ~Children() {
    for (const pid_t pid : pids_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }
  absl::Status Fork(int rank, int ranks, const JobKey& key, const RankFunction& function) {
    int go[2];
    if (pipe2(go, O_CLOEXEC) != 0) {
      return ErrnoStatus(errno, "pipe2");
    }
    std::fflush(nullptr);  // Otherwise the child would print stdio's buffered text once more.
    const pid_t pid = fork();
    if (pid < 0) {
      return ErrnoStatus(errno, "fork");
    }
    if (pid == 0) {
      close(go[1]);
      go_.clear();
      pids_.clear();
      RunChild(rank, ranks, key, function, go[0]);
    }
    close(go[0]);
    go_.emplace_back(go[1]);
    pids_.push_back(pid);
    return absl::OkStatus();
  }
  absl::Status Go(int port) {
    for (const UniqueFd& fd : go_) {
      DT_RETURN_IF_ERROR(WriteFully(fd.get(), &port, sizeof(port)));
    }
    return absl::OkStatus();
  }
  absl::Status Wait() {
    absl::Status first;
    for (size_t rank = 0; rank < pids_.size(); ++rank) {
      int status = 0;
      while (waitpid(pids_[rank], &status, 0) < 0 && errno == EINTR) {
      }
      if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        first.Update(absl::InternalError(
            absl::StrFormat("rank %d ended with %s %d", rank, WIFEXITED(status) ? "code" : "signal",
                            WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status))));
      }
    }
    pids_.clear();
    return first;
  }

 private:
  std::vector<pid_t> pids_;
  std::vector<UniqueFd> go_;
};

}  // namespace

absl::Status RunLocalRanks(int ranks, const RankFunction& function) {
  DT_ASSIGN_OR_RETURN(const JobKey key, JobKey::Generate());
  Children children;
  for (int rank = 0; rank < ranks; ++rank) {
    DT_RETURN_IF_ERROR(children.Fork(rank, ranks, key, function));
  }
  // The process starts threads only after the forks.
  DT_ASSIGN_OR_RETURN(const auto server, StoreServer::Create("127.0.0.1", 0, key, 0));
  DT_RETURN_IF_ERROR(children.Go(server->port()));
  return children.Wait();
}

}  // namespace dtrain::comm
