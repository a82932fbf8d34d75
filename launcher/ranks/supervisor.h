// Supervises one attempt: starts the ranks of this node, forwards stop signals once, stops
// everything at the first failure or hang, and reports what happened. Owns the ranks' processes.
// Used by the main thread only, to which signals and the ranks' parent-death signal belong.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "launcher/nodes/peers.h"
#include "launcher/ranks/agent_socket.h"
#include "launcher/ranks/attempt.h"
#include "launcher/ranks/failure_report.h"
#include "launcher/ranks/guard.h"
#include "launcher/ranks/job_watch.h"
#include "launcher/ranks/processes.h"
#include "launcher/ranks/rank_reuse.h"
#include "launcher/ranks/rank_states.h"
#include "launcher/ranks/signals.h"
#include "launcher/ranks/stop_progress.h"
#include "launcher/ranks/survivors.h"
#include "launcher/records/reporter.h"

namespace dtrain::launcher {

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
  // When the next things are to be done; nothing: what they wait for has not come.
  struct Dues {
    std::optional<Deadline> settle;    // Set by the first failure.
    std::optional<Deadline> stacks;    // Set by a hang.
    std::optional<Deadline> stay;      // Set by StopRanks, if ranks may stay.
    std::optional<Deadline> kill;      // Set when ranks get SIGTERM.
    std::optional<Deadline> grace;     // Set by the first stop signal.
    std::optional<Deadline> barrier;   // Set by the first end with 0.
    std::optional<Deadline> removal;   // Set by KillRanks.
    std::optional<Deadline> verdicts;  // Those of the other nodes; set by StopRanks.

    Deadline EarliestAfter(Deadline next) const;
  };
  // The ends of which this node and the others have told each other.
  struct Told {
    int nodes_ended = 0;   // How many others have told that their ranks have ended.
    bool own_end = false;  // This one has told the same.
    int failed_pid = -1;   // The failed rank of this node that the others know.
  };

  absl::Status StartRanks();
  absl::Status StartRank(const RankSlot& slot);
  void AnswerSaved();
  void KeepReserve();
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
  void PublishFailure();
  void PublishEnd(const RankEnd& end);
  void CannotStart(absl::Status why);
  void StopRanks(const std::string& why);
  void KillRanks();
  bool StoppedByUs(const RankEnd& end) const;
  bool Finished();

  Parts parts_;
  const SupervisorLimits limits_;
  const Attempt& attempt_;
  Processes processes_;
  AttemptResult result_;
  JobWatch watch_;
  RankReuse reuse_;
  FailureReport report_;
  RankStates ranks_;
  StopProgress stop_progress_;
  Phase phase_ = Phase::kRunning;
  std::vector<int> killed_;  // Ranks that were killed because they hang.
  Dues due_;
  int64_t ends_seen_ = 0;
  Told told_;
  std::string announced_;  // The failure line that has been shown.
};

}  // namespace dtrain::launcher
