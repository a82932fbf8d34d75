// Supervises one attempt: starts the ranks of this node, forwards stop signals once, stops
// everything at the first failure or hang, and reports what happened. Owns the ranks' processes.
// Used by the main thread only, to which signals and the ranks' parent-death signal belong.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/job_env.h"
#include "base/next_attempt.h"
#include "base/system/cgroup.h"
#include "launcher/nodes/peers.h"
#include "launcher/rank_plan.h"
#include "launcher/ranks/agent_socket.h"
#include "launcher/ranks/guard.h"
#include "launcher/ranks/job_watch.h"
#include "launcher/ranks/processes.h"
#include "launcher/ranks/signals.h"
#include "launcher/ranks/stop_progress.h"
#include "launcher/ranks/survivors.h"
#include "launcher/records/post_mortem.h"
#include "launcher/records/reporter.h"

namespace dtrain::launcher {

struct SupervisorLimits {
  // A rank that ended with 75 may be the victim of one whose end is not yet seen.
  absl::Duration settle = absl::Milliseconds(150);
  // Time between SIGTERM and SIGKILL after a failure.
  absl::Duration terminate = absl::Milliseconds(300);
  // Time for ranks to save and stop after the user's or scheduler's signal.
  absl::Duration stop_grace = absl::Minutes(5);
  // Time for the other ranks to end after the first ended with 0.
  absl::Duration exit_barrier = absl::Minutes(5);
  // Time for the other nodes to end after this one stopped.
  absl::Duration peers_end = absl::Seconds(2);
  // Time for the ranks of a job that hangs to write their stacks.
  absl::Duration stacks = absl::Milliseconds(300);
  // Time for killed processes to be gone.
  absl::Duration removal = absl::Seconds(5);
  // Time for ranks that can stay to give the failed attempt up and to say that they wait.
  absl::Duration stay = absl::Seconds(2);
  // Time for a process that stayed to take its next attempt up.
  absl::Duration reuse = absl::Seconds(5);
  // Time for the news why the ranks were stopped, when one has saved and asks to stay.
  absl::Duration news = absl::Seconds(1);
  // From the first step of all ranks to the start of a process in reserve.
  absl::Duration reserve = absl::Milliseconds(200);
};

struct Attempt {
  std::string program;  // Resolved path.
  std::string name;     // argv[0].
  std::vector<std::string> arguments;
  Environment environment;  // The launcher's own.
  JobShape shape;
  std::vector<RankSlot> slots;
  std::string log_dir;  // Folder of this attempt's logs.
  std::string host;
  std::vector<int> err_shown;  // Ranks whose stderr is shown while they run.
  int token_fd = -1;
  bool reserve = false;  // Keep a process ready that takes the place of the next lost rank.
};

struct AttemptResult {
  std::vector<RankEnd> ends;  // This node's ranks, and other nodes' failures.
  StopRequest stop;
  absl::Status error;  // A rank could not be started, or a node was lost.
  // The newest durable step of which another node has told; -1: of none. Where nodes have run
  // directories of their own, only node 0 sees it in its own.
  int64_t durable_step = -1;
};

// The root cause's code; without a cause, that of `error` or of the stop request. Pure.
int ExitCodeOf(const AttemptResult& result);

// Starts a process without a rank, which takes the place of the next one of this node that is lost.
absl::StatusOr<pid_t> StartReserve(const Attempt& attempt, const Guard& guard,
                                   Survivors& survivors);

// Path of a rank's log, `suffix` "out" or "err". Pure.
std::string LogPath(const std::string& log_dir, int rank, const char* suffix);

class Supervisor {
 public:
  struct Parts {
    SignalSource& signals;
    Guard& guard;
    AgentSocket& socket;
    Reporter& reporter;
    Peers& peers;
    // Those of the attempt before, and of this one for the next; null: none are kept.
    Survivors* survivors = nullptr;
  };
  Supervisor(const Parts& parts, const SupervisorLimits& limits, const Attempt& attempt);

  // Blocks until all ranks have ended (or could not be killed), including those of peers.
  AttemptResult Run();

 private:
  enum class Phase { kRunning, kTerminating, kKilled };
  struct RankState {
    int64_t step = -1;
    std::string phase;
    int64_t beat_nanos = 0;  // When the rank last said where it is; 0: never.
    std::string error;
    uint64_t err_from = 0;  // Offset in the log at which this attempt's stderr begins.
  };

  absl::Status StartRanks();
  absl::Status StartRank(const RankSlot& slot);
  bool StartSurvivor(const RankSlot& slot, const Environment& environment);
  bool StartFromReserve(const RankSlot& slot, const Environment& environment);
  bool GiveAttempt(pid_t pid, const RankSlot& slot, NextAttempt next);
  void OnStay(const AgentMessage& message);
  void Keep(const RankSlot& slot, int exit_code);
  void AnswerSaved();
  void KeepReserve();
  bool RunsItself(int rank) const;
  void ReplaceSilent();
  bool AwaitStays();
  void NoteEnd(RankEnd end, bool is_kept);
  void Wait();
  void TakeSignals();
  void TakeMessages(bool all = false);
  // Gives what `dtrain status` shows, as JSON.
  std::string Describe() const;
  void TakeOrders();
  void TakeEnds();
  bool IsWatching() const;
  void WatchRanks();
  void OnHang(RankEnd end);
  void AskStacks(const RankEnd& hang);
  void Decide();
  // `job_goes_on`: with other nodes; the processes of this one that can stay are used again.
  void OnStopSignal(int signal, bool from_peer, bool job_goes_on);
  void SayStopProgress(const std::optional<std::string>& line);
  absl::Status BarrierError() const;
  void PublishFailure();
  void PublishEnd(const RankEnd& end);
  void PublishStartError();
  void StopRanks(const std::string& why);
  void KillRanks();
  bool StoppedByUs(const RankEnd& end) const;
  bool Finished();
  void Report();
  void ReportCause(const RankEnd& cause);
  void WriteReport(const RankEnd* cause);
  RankRemains RemainsOf(int rank, const std::vector<RankView>& views);
  std::vector<std::string> LogLines(int rank, const std::string& path, size_t lines_max) const;
  bool SaidAbove(const std::string& error) const;

  Parts parts_;
  const SupervisorLimits limits_;
  const Attempt& attempt_;
  Processes processes_;
  AttemptResult result_;
  JobWatch watch_;
  std::map<int, RankState> ranks_;
  std::map<int, std::vector<ThreadPlace>> places_;  // Where ranks' threads were when the job hung.
  StopProgress stop_progress_;
  Phase phase_ = Phase::kRunning;
  bool stopped_here_ = false;  // A stop signal came to this agent itself; SIGUSR1 does not count.
  bool job_goes_on_ = false;   // All stop signals so far were for a change of nodes.
  bool reserve_tried_ = false;
  std::optional<Deadline> settle_;      // Set by the first failure.
  std::optional<Deadline> stacks_;      // Set by a hang.
  std::optional<Deadline> stay_;        // Set by AwaitStays.
  std::map<int, Deadline> reused_;      // Reused ranks that have not said hello yet.
  std::map<int, Deadline> saved_;       // Ranks that ask to stay after a stop signal and a save.
  std::optional<Deadline> reserve_at_;  // Set by the first step of the last rank.
  std::vector<int> killed_;             // Ranks that were killed because they hang.
  std::optional<Deadline> kill_;        // Set when ranks get SIGTERM.
  std::optional<Deadline> grace_;       // Set by the first stop signal.
  std::optional<Deadline> barrier_;     // Set by the first end with 0.
  std::optional<Deadline> removal_;     // Set by KillRanks.
  std::optional<Deadline> ended_wait_;  // For other nodes' verdicts; set by StopRanks.
  const absl::Time started_;
  const int64_t oom_kills_before_ = OomKills().value_or(0);
  int64_t ends_seen_ = 0;
  int nodes_ended_ = 0;
  bool end_published_ = false;
  int published_pid_ = -1;  // Pid of the failed rank that the other nodes know.
  std::string announced_;   // The failure line that has been shown.
};

}  // namespace dtrain::launcher
