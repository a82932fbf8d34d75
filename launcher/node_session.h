// This node's part of a job: what lives as long as the launch, and how one attempt runs here.
//
// Who decides which attempts there are stands above it: launch.cc for a fixed number of nodes,
// elastic_launch.cc for one that changes. Used by the main thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/job_env.h"
#include "base/unique_fd.h"
#include "comm/net/job_key.h"
#include "comm/net/socket.h"
#include "launcher/bind_node.h"
#include "launcher/jobs/control_socket.h"
#include "launcher/jobs/job_registry.h"
#include "launcher/jobs/job_status.h"
#include "launcher/launch.h"
#include "launcher/nodes/token.h"
#include "launcher/options.h"
#include "launcher/rank_plan.h"
#include "launcher/ranks/supervisor.h"
#include "launcher/temp_dir.h"

namespace dtrain::launcher {

class NodeSession {
 public:
  NodeSession(const LaunchOptions& options, const Environment& environment, const NodeStart* start)
      : options_(options), environment_(environment), start_(start) {}

  // Finds the program and the job's token, and creates what forks or blocks signals. REQUIRES: the
  // caller has one thread.
  absl::Status Prepare();

  // Called on node 0 before any node has a file open in the run directory. `is_first`: no attempt
  // was made before, so --fresh is due. Gives the number of the attempt's logs.
  absl::StatusOr<int> ReadyRunDirectory(bool is_first, int world_size) const;
  // OK if this node seems to have a place for the ranks' output. Makes nothing.
  absl::Status CheckRoom() const;
  // Opens this node's files in the run directory, at the first call. Does not wait for other nodes:
  // node 0 has prepared the directory.
  absl::Status OpenRunDirectory(const std::string& run_id);
  // Runs this node's ranks of the attempt of `shape`, to which the session adds what it knows.
  // REQUIRES: OpenRunDirectory.
  absl::StatusOr<AttemptResult> RunAttempt(JobShape shape, int log_number, Peers& peers);

  // The port of the coordinator may have been chosen just now; later attempts meet there again.
  void Serving(const comm::Endpoint& endpoint);
  // The shared token is not needed any more, because all nodes have it.
  void DropSharedToken() { shared_token_.reset(); }
  // Serves `dtrain status` of all nodes until StopServingNodes. `nodes` is called in another
  // thread. REQUIRES: called before Register.
  void ServeNodes(std::function<JobNodes()> nodes);
  void StopServingNodes() { nodes_server_.reset(); }
  // Lets `dtrain ps`, `status`, `stop` and `drain` find this job as the run `run_id`.
  void Register(const std::string& run_id);
  // The next stop signal that has arrived, or 0.
  int TakeStopSignal();
  // Says a line: with the reporter when there is one, else on stderr.
  void Say(const std::string& text) const;
  // Ends the processes that stayed for a next attempt which this node does not take part in, and
  // the one in reserve too.
  void DropSurvivors();
  // Ends those that stayed, because this node waits as a spare.
  void DropKept();
  // Whether a process is to be in reserve while this node waits, and none was started.
  bool LacksReserve() const;
  // REQUIRES: LacksReserve(), and the job's program may be started so (LobbyAgent::MayReserve).
  void StartReserve();
  // Reports the end of the job on this node, and gives `code`.
  int Finish(int code, double seconds);

  const LaunchOptions& options() const { return options_; }
  const comm::JobKey& key() const { return *key_; }
  int local_ranks() const { return local_ranks_; }
  const std::string& run_id() const { return run_id_; }
  // Null before OpenRunDirectory.
  Reporter* reporter() const { return reporter_.get(); }
  // A path in the agent's folder, which only this user can read.
  std::string AgentPath(const char* name) const;
  const Environment& environment() const { return environment_; }

 private:
  absl::Status TakeKey();
  absl::Status CheckThatNoJobRunsThere() const;
  NodeBinding Binding(int attempt) const;
  Attempt AttemptOf(JobShape shape, const NodeBinding& binding) const;
  void ShowOutputs(Attempt& attempt);
  void Announce(const Attempt& attempt) const;

  LaunchOptions options_;
  const Environment& environment_;
  const NodeStart* const start_;  // Null: no other host started this node.
  std::string program_;
  std::string run_dir_;  // The path as the user wrote it, for messages.
  std::string log_dir_;
  std::string run_id_;
  int local_ranks_ = 0;
  // In the order in which they must be created: those that fork or block signals come before those
  // that start threads.
  std::optional<SignalSource> signals_;
  std::optional<TempDir> folder_;
  std::optional<Guard> guard_;
  std::optional<AgentSocket> socket_;
  std::optional<Survivors> survivors_;  // With a restart to come; behind its guard.
  bool reserve_failed_ = false;         // It could not be started while this node waited.
  std::optional<SharedToken> shared_token_;
  std::optional<comm::JobKey> key_;
  UniqueFd token_;
  std::unique_ptr<Reporter> reporter_;
  std::optional<JobEntry> entry_;  // By which `dtrain ps` finds this job.
  std::string registered_as_;      // The run of entry_.
  std::unique_ptr<ControlServer> nodes_server_;
};

// A job that Slurm has started again goes on where it was: --fresh was for its first start. Pure.
int FirstAttempt(const LaunchOptions& options);

}  // namespace dtrain::launcher
