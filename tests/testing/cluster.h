// Runs a function on N ranks that meet through a store: as forked processes or as threads.
//
// Processes are real ranks: they can be killed, stopped and slowed. They are forked before this
// process starts any thread of its own, die with it, and are killed at the time bound, so that a
// hang is a failed test with a name and never a hung one. Threads are for sanitizers that look into
// one process; when they pass the time bound, the whole test ends.
//
//   const auto results = testing::RunRanks({.size = 2}, [](testing::RankContext& context) {
//     DT_ASSIGN_OR_RETURN(auto group, CreateHostGroup(context.store, context.group_options()));
//     return group->Barrier(Deadline::Infinite());
//   });
//   for (const auto& result : results) EXPECT_TRUE(result.status.ok()) << result.status;
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/unique_fd.h"
#include "comm/group.h"
#include "comm/net/job_key.h"
#include "comm/net/store.h"
#include "comm/net/store_server.h"

namespace dtrain::testing {

// The argument of a rank's function.
struct RankContext {
  int rank = 0;
  int size = 1;
  comm::Store* store = nullptr;  // Shared by all ranks and the test itself.
  std::string job_key;           // 32 bytes.

  // Options for a group of all ranks on one node, with a timeout of 30 s.
  comm::GroupOptions group_options() const;
  // Sets `key` in the store, for a test that waits for it with Cluster::Await.
  absl::Status Announce(const std::string& key) const;
};

using RankBody = std::function<absl::Status(RankContext& context)>;

enum class RankKind { kProcess, kThread };

struct ClusterOptions {
  int size = 2;
  RankKind kind = RankKind::kProcess;
  // Limit from Start to the end of Join; then the remaining ranks are killed.
  absl::Duration time_bound = absl::Seconds(100);
};

struct RankResult {
  // The function's result. DeadlineExceeded: not done at the time bound; Aborted: ended without a
  // result (see signal and exit_code).
  absl::Status status = {};
  int signal = 0;
  int exit_code = 0;
  absl::Duration duration = {};  // Time from Start to the end of the function, as seen by the test.
};

class Cluster {
 public:
  // Starts the ranks. REQUIRES (processes): the calling process has one thread.
  static absl::StatusOr<std::unique_ptr<Cluster>> Start(const ClusterOptions& options,
                                                        RankBody body);
  // Kills the ranks that still run.
  ~Cluster();

  // Waits until a rank has announced `key`.
  absl::Status Await(const std::string& key);
  // What a rank sets as the value of `key`, for which this waits as long as the ranks may run.
  absl::StatusOr<std::string> Result(const std::string& key);
  comm::Store& store() { return *store_; }
  pid_t pid(int rank) const { return ranks_.at(static_cast<size_t>(rank))->pid; }

  // REQUIRES: processes.
  void Kill(int rank);      // SIGKILL.
  void Stop(int rank);      // SIGSTOP.
  void Continue(int rank);  // SIGCONT; ends Slow too.
  // From now on the rank runs 1 part in `factor` of the time, in slices of some milliseconds.
  void Slow(int rank, int factor);

  // Waits for all ranks and gives their results. Stopped ranks count as not done.
  std::vector<RankResult> Join();

 private:
  struct Rank {
    pid_t pid = 0;
    UniqueFd go;      // The child reads the store's port from it.
    UniqueFd result;  // The child writes its status to it.
    std::thread thread;
    std::atomic<bool> done{false};
    RankResult outcome;
  };
  explicit Cluster(const ClusterOptions& options);
  absl::Status Fork(int rank, const RankBody& body, const comm::JobKey& key);
  absl::Status ServeStore(const comm::JobKey& key);
  void RunThread(Rank& rank, int index, const RankBody& body);
  void CollectProcess(Rank& rank);
  void EndSlow();

  const ClusterOptions options_;
  const absl::Time started_;
  const Deadline deadline_;
  std::string job_key_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::unique_ptr<comm::StoreServer> server_;
  std::unique_ptr<comm::Store> store_;
  std::atomic<bool> end_slow_{false};
  std::vector<std::thread> slow_threads_;
  bool joined_ = false;
};

// Calls Start and Join.
std::vector<RankResult> RunRanks(const ClusterOptions& options, RankBody body);

}  // namespace dtrain::testing
