#include "tests/testing/cluster.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "comm/net/store_client.h"

namespace dtrain::testing {
namespace {

// Sanitizers start threads of their own, which survive a fork or are not needed after it.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// Sanitized tests get more time (cmake/DtrainTargets.cmake, tests/testing/time_bounds.py).
int TimeFactor() {
  const char* const factor = std::getenv("DTRAIN_TEST_TIME_FACTOR");
  return factor == nullptr ? 1 : std::max(1, std::atoi(factor));
}

int ThreadCount() {
  int count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    static_cast<void>(task);
    ++count;
  }
  return count;
}

absl::Status RunBody(const RankBody& body, RankContext& context) {
  try {
    return body(context);
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrFormat("exception: %s", error.what()));
  }
}

// Runs the child to its end; never returns into the test.
[[noreturn]] void RunChild(RankContext context, const comm::JobKey& key, const RankBody& body,
                           int go, int result) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  SetLogRank(context.rank);
  int port = 0;
  if (read(go, &port, sizeof(port)) != sizeof(port)) {
    _exit(1);  // The test ended before the child started.
  }
  const auto run = [&]() -> absl::Status {
    const comm::Hello hello{.role = comm::Hello::Role::kRank, .id = context.rank, .name = "rank"};
    DT_ASSIGN_OR_RETURN(auto store, comm::StoreClient::Connect({"127.0.0.1", port}, key, hello,
                                                               Deadline::After(absl::Seconds(30))));
    context.store = store.get();
    return RunBody(body, context);
  };
  const absl::Status status = run();
  const auto code = static_cast<int32_t>(status.code());
  const std::string text(status.message());
  std::string bytes(reinterpret_cast<const char*>(&code), sizeof(code));
  bytes += text.substr(0, 60000);
  const bool written = WriteFully(result, bytes.data(), bytes.size()).ok();
  _exit(written ? 0 : 1);
}

}  // namespace

comm::GroupOptions RankContext::group_options() const {
  comm::GroupOptions options;
  options.rank = rank;
  options.size = size;
  options.node_id = "node";
  options.host_address = "127.0.0.1";
  options.job_key = job_key;
  options.timeout = absl::Seconds(30);
  options.connect_timeout = absl::Seconds(30);
  return options;
}

absl::Status RankContext::Announce(const std::string& key) const {
  return store->Set("announce/" + key, "1", Deadline::After(absl::Seconds(30)));
}

Cluster::Cluster(const ClusterOptions& options)
    : options_(options),
      started_(absl::Now()),
      deadline_(Deadline::After(TimeFactor() * options.time_bound)) {}

absl::StatusOr<std::unique_ptr<Cluster>> Cluster::Start(const ClusterOptions& options,
                                                        RankBody body) {
  auto cluster = std::unique_ptr<Cluster>(new Cluster(options));
  DT_ASSIGN_OR_RETURN(const comm::JobKey key, comm::JobKey::Generate());
  const auto secret = key.secret_bytes();
  cluster->job_key_.assign(reinterpret_cast<const char*>(secret.data()), secret.size());
  for (int i = 0; i < options.size; ++i) {
    cluster->ranks_.push_back(std::make_unique<Rank>());
  }
  if (options.kind == RankKind::kThread) {
    cluster->store_ = comm::NewMemoryStore();
    for (int i = 0; i < options.size; ++i) {
      Rank& rank = *cluster->ranks_[static_cast<size_t>(i)];
      Cluster* const self = cluster.get();
      rank.thread = std::thread([self, &rank, i, body] { self->RunThread(rank, i, body); });
    }
    return cluster;
  }
  // A thread that was joined may still be listed for a moment.
  for (const Deadline settled = Deadline::After(absl::Seconds(5));
       !kSanitized && ThreadCount() != 1 && !settled.Expired();) {
    sched_yield();
  }
  if (const int threads = ThreadCount(); threads != 1 && !kSanitized) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "forking ranks from a process with %d threads: destroy what owns them first", threads));
  }
  for (int i = 0; i < options.size; ++i) {
    DT_RETURN_IF_ERROR(cluster->Fork(i, body, key));
  }
  DT_RETURN_IF_ERROR(cluster->ServeStore(key));  // The process starts threads only after the forks.
  return cluster;
}

absl::Status Cluster::Fork(int index, const RankBody& body, const comm::JobKey& key) {
  int go[2];
  int result[2];
  if (pipe2(go, O_CLOEXEC) != 0 || pipe2(result, O_CLOEXEC) != 0) {
    return ErrnoStatus(errno, "pipe2");
  }
  fflush(nullptr);  // Otherwise the child would print stdio's buffered text once more.
  const pid_t pid = fork();
  if (pid < 0) {
    return ErrnoStatus(errno, "fork");
  }
  Rank& rank = *ranks_[static_cast<size_t>(index)];
  if (pid == 0) {
    close(go[1]);
    close(result[0]);
    for (auto& other : ranks_) {  // Close the pipes of ranks forked before.
      other->go.reset();
      other->result.reset();
    }
    RankContext context;
    context.rank = index;
    context.size = options_.size;
    context.job_key = job_key_;
    RunChild(context, key, body, go[0], result[1]);
  }
  close(go[0]);
  close(result[1]);
  rank.pid = pid;
  rank.go = UniqueFd(go[1]);
  rank.result = UniqueFd(result[0]);
  return absl::OkStatus();
}

absl::Status Cluster::ServeStore(const comm::JobKey& key) {
  DT_ASSIGN_OR_RETURN(server_, comm::StoreServer::Create("127.0.0.1", 0, key, 0));
  const int port = server_->port();
  for (auto& rank : ranks_) {
    DT_RETURN_IF_ERROR(WriteFully(rank->go.get(), &port, sizeof(port)));
  }
  const comm::Hello hello{.role = comm::Hello::Role::kTool, .name = "test"};
  DT_ASSIGN_OR_RETURN(store_, comm::StoreClient::Connect({"127.0.0.1", port}, key, hello,
                                                         Deadline::After(absl::Seconds(30))));
  return absl::OkStatus();
}

void Cluster::RunThread(Rank& rank, int index, const RankBody& body) {
  RankContext context;
  context.rank = index;
  context.size = options_.size;
  context.job_key = job_key_;
  context.store = store_.get();
  rank.outcome.status = RunBody(body, context);
  rank.outcome.duration = absl::Now() - started_;
  rank.done.store(true);
}

Cluster::~Cluster() {
  if (!joined_) {
    for (auto& rank : ranks_) {
      if (rank->pid > 0) {
        kill(rank->pid, SIGKILL);
      }
    }
    Join();
  }
}

absl::Status Cluster::Await(const std::string& key) { return Result("announce/" + key).status(); }

absl::StatusOr<std::string> Cluster::Result(const std::string& key) {
  return store_->Get(key, deadline_);
}

void Cluster::Kill(int rank) { DT_CHECK_EQ(kill(pid(rank), SIGKILL), 0); }
void Cluster::Stop(int rank) { DT_CHECK_EQ(kill(pid(rank), SIGSTOP), 0); }
void Cluster::Continue(int rank) {
  EndSlow();
  DT_CHECK_EQ(kill(pid(rank), SIGCONT), 0);
}

void Cluster::Slow(int rank, int factor) {
  slow_threads_.emplace_back([this, pid = pid(rank), factor] {
    const absl::Duration slice = absl::Milliseconds(2);
    while (!end_slow_.load()) {
      kill(pid, SIGSTOP);
      absl::SleepFor(slice * (factor - 1));
      kill(pid, SIGCONT);
      absl::SleepFor(slice);
    }
  });
}

void Cluster::EndSlow() {
  end_slow_ = true;
  for (std::thread& thread : slow_threads_) {
    thread.join();
  }
  slow_threads_.clear();
  end_slow_ = false;
}

void Cluster::CollectProcess(Rank& rank) {
  std::string bytes;
  bool timed_out = false;
  while (true) {
    pollfd item{rank.result.get(), POLLIN, 0};
    const int ready = poll(&item, 1, deadline_.PollTimeoutMs());
    if (ready > 0) {
      char chunk[4096];
      const ssize_t n = read(rank.result.get(), chunk, sizeof(chunk));
      if (n <= 0) {
        break;
      }
      bytes.append(chunk, static_cast<size_t>(n));
    } else if (deadline_.Expired()) {
      timed_out = true;
      kill(rank.pid, SIGKILL);
      break;
    }
  }
  rank.outcome.duration = absl::Now() - started_;
  int wait_status = 0;
  while (waitpid(rank.pid, &wait_status, 0) < 0 && errno == EINTR) {
  }
  rank.outcome.signal = WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : 0;
  rank.outcome.exit_code = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 0;
  int32_t code = 0;
  if (timed_out) {
    rank.outcome.status = absl::DeadlineExceededError(absl::StrFormat(
        "pid %d was not done after %s", rank.pid, absl::FormatDuration(options_.time_bound)));
  } else if (bytes.size() < sizeof(code)) {
    rank.outcome.status =
        absl::AbortedError(absl::StrFormat("pid %d ended without a result: signal %d, exit code %d",
                                           rank.pid, rank.outcome.signal, rank.outcome.exit_code));
  } else {
    std::memcpy(&code, bytes.data(), sizeof(code));
    rank.outcome.status =
        absl::Status(static_cast<absl::StatusCode>(code), bytes.substr(sizeof(code)));
  }
}

std::vector<RankResult> Cluster::Join() {
  DT_CHECK(!joined_);
  joined_ = true;
  for (auto& rank : ranks_) {
    if (rank->pid > 0) {
      CollectProcess(*rank);
      continue;
    }
    while (rank->thread.joinable() && !rank->done.load() && !deadline_.Expired()) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    DT_CHECK(!rank->thread.joinable() || rank->done.load())
        << "a rank that is a thread was not done after "
        << absl::FormatDuration(options_.time_bound);
    if (rank->thread.joinable()) {
      rank->thread.join();
    }
  }
  EndSlow();
  store_.reset();
  server_.reset();
  std::vector<RankResult> results;
  for (auto& rank : ranks_) {
    results.push_back(rank->outcome);
  }
  return results;
}

std::vector<RankResult> RunRanks(const ClusterOptions& options, RankBody body) {
  auto cluster = Cluster::Start(options, std::move(body));
  if (!cluster.ok()) {
    return std::vector<RankResult>(static_cast<size_t>(options.size),
                                   RankResult{.status = cluster.status()});
  }
  return (*cluster)->Join();
}

}  // namespace dtrain::testing
