// The decisions of an elastic job's coordinator: which nodes train in which attempt, when one is
// ended, and how the job ends. Pure: events and the time go in, actions come out.
//
//   gathering ──enough nodes──► running ──lost, drained, grown──► ending ──all have reported──┐
//       ▲                          └──────────all have reported───────────► waiting ◄─────────┤
//       └──────────────────────────────────────────────────────────────────────┘        ended ◄┘
//
// One attempt exists at a time: the next begins when each node of the last has reported its end or
// is lost. A lost node cannot disturb the next attempt, whose number its ranks do not have. The
// node of number 0 has the coordinator and is always the first of the world. A coordinator that was
// started again adopts the attempt that its agents tell it of, and the ranks train on meanwhile
// (elastic_job_adopt.cc). A node whose own host fails, such as one with a full disk, is set aside
// for a while (elastic_job_aside.cc). Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "launcher/nodes/world_choice.h"
#include "launcher/ranks/rank_end.h"
#include "launcher/restart.h"

namespace dtrain::launcher {

struct ElasticOptions {
  int nodes_min = 1;
  int nodes_max = 1;
  BatchSizes batch;
  int restarts_max = 0;
  int first_attempt = 0;
  // How long fewer than nodes_min nodes are waited for.
  absl::Duration join_timeout = absl::Minutes(5);
  // How long a job that could start or grow waits for still more nodes.
  absl::Duration last_call = absl::Seconds(30);
  // How long a rank's loss of a peer may wait for the news that a node is lost.
  absl::Duration settle = absl::Milliseconds(1200);
  // From a failure on one node, or an order to end, to the reports of all.
  absl::Duration reports = absl::Seconds(10);
  absl::Duration stop_grace = absl::Minutes(5);
  absl::Duration exit_barrier = absl::Minutes(5);
  // This coordinator follows another one of the same job, whose attempt may still run.
  bool is_successor = false;
  // How long a successor waits for the agents of that attempt.
  absl::Duration adoption = absl::Seconds(10);
};

// A node that has come.
struct ElasticNode {
  int number = 0;  // --node-rank, by which users name it. Each live node has its own.
  std::string host;
  int ranks = 1;
  std::string alias = {};  // Its host's name in the hostfile; "": it was started without one.

  // "node 2 (host b)", or "node 2 (host b, n2 in the hostfile)" if that is another name.
  std::string Name() const;
};

// How an attempt ended on a node.
struct NodeReport {
  int attempt = 0;
  int code = 0;
  std::optional<RankEnd> cause;  // The first end, as far as this node knows.
  int stop_signal = 0;
  bool stopped_here = false;  // The signal came to this node's agent and not to another's.
  int64_t durable_step = -1;  // Node 0's count.
  bool cannot_start = false;  // The node itself has no place for ranks, and none of it has run.
  std::string why = {};       // cannot_start: the error.
};

// The counts that decide about restarts. Agents keep them for a coordinator that is started again.
struct FailureCounts {
  int64_t durable_step = -1;
  std::string last;  // The cause of the last failure.
  int alike = 0;     // Failures in a row by it without a new durable step.
  int restarts_used = 0;
  int bug_restarts_used = 0;
  std::map<int, HostFailures> hosts = {};  // By number of the node whose host failed.
  // The term of the coordinator that began the job's first attempt; 0: the one that says it.
  int64_t job_term = 0;
};

// The last attempt that an agent was told of, which it tells a coordinator that follows another.
struct AttemptMemory {
  int attempt = -1;
  // The term of the coordinator that began it. Another one, which has not heard of it, may begin an
  // attempt of the same number.
  int64_t term = 0;
  std::vector<ElasticNode> nodes = {};    // Its world, by node rank.
  FailureCounts failures = {};            // When it began.
  std::optional<NodeReport> report = {};  // How it has ended on the agent's node; none: it runs.
};

struct ElasticAction {
  enum class Kind {
    kStart,    // `nodes` begin `attempt`, in the order of their node ranks.
    kStop,     // The nodes of `attempt` end it: with a save, or at once.
    kPark,     // The only one of `nodes` is a spare for the time being.
    kDismiss,  // The only one of `nodes` leaves and ends with `code`.
    kEnd,      // All end with `code`.
  };
  Kind kind = Kind::kStart;
  int attempt = 0;
  std::vector<int> nodes = {};
  bool save = false;
  bool job_goes_on = false;  // kStop: with other nodes, behind the save.
  int code = 0;
  std::string why = {};
  FailureCounts failures = {};  // kStart and kPark.
};

class ElasticJob {
 public:
  ElasticJob(const ElasticOptions& options, int64_t now_nanos);

  // Events. `id` is a number that was never used before; ids follow the order of arrival.
  void Join(int id, const ElasticNode& node, int64_t now_nanos);
  // The same of an agent that another coordinator has led before.
  void Adopt(int id, const ElasticNode& node, const AttemptMemory& memory, int64_t now_nanos);
  // The connection is gone, or nothing is heard.
  void Lose(int id, const std::string& why, int64_t now_nanos);
  // A node that has no ranks goes by itself.
  void Leave(int id, int64_t now_nanos);
  // An agent knows that a coordinator of this term has begun the job's first attempt.
  void HasBegun(int64_t job_term);
  void Report(int id, const NodeReport& report, int64_t now_nanos);
  // The user stops the job, at a moment when this agent has no ranks that would tell.
  void Stop(int signal, int64_t now_nanos);
  // Lets the node finish its step, save and leave. FailedPrecondition: the job cannot do without
  // it.
  absl::Status Drain(int id, int64_t now_nanos);
  // Time passes. To be called every 100 ms or so.
  void Tick(int64_t now_nanos);

  // Gives the actions that are to be done, the oldest first, and gives each of them once.
  std::vector<ElasticAction> TakeActions() { return std::exchange(actions_, {}); }

  // The nodes of the attempt that runs or is being ended, by node rank; none between attempts.
  std::vector<int> world() const;
  int attempt() const { return attempt_.number; }  // The present or the last one.
  bool HasNode(int id) const { return members_.count(id) > 0; }

  struct Standing {
    ElasticNode node;
    int place = -1;  // In world(); -1: it is not in it.
    bool is_leaving = false;
    std::string aside = {};  // Why it is set aside; "": it is not.
  };
  // All nodes that the job has: those of the world by their places, then the others.
  std::vector<Standing> Standings() const;
  bool has_ended() const { return phase_ == Phase::kEnded; }

 private:
  enum class Phase { kGathering, kRunning, kEnding, kWaiting, kEnded };
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  static constexpr int kAnyNode = -1;
  struct Member {
    ElasticNode node;
    bool is_parked = false;  // It knows that it is a spare.
    bool leaving = false;
    int leave_code = 0;
    std::optional<NodeReport> report = {};
  };

  struct Attempt {
    int number = 0;
    int64_t term = 0;             // The term of the coordinator that began it, if it is adopted.
    std::vector<int> world = {};  // Ids, by node rank.
    std::vector<std::string> lost = {};
    std::map<int, Member> gone = {};  // Those of the world that left behind their reports.
    std::set<int> unable = {};        // Those that cannot start their ranks.
    bool is_planned = false;          // It is ended with a save, to go on with other nodes.
    bool ends_at_once = false;
    int64_t reports_until = kNever;
    int64_t settled_at = kNever;
  };
  // Nodes of an adopted attempt whose agents have not come back yet, by negative ids that stand for
  // theirs.
  struct Adoption {
    bool is_open = true;  // Until this coordinator begins an attempt of its own.
    int64_t until = kNever;
    int next_id = -1;
    int attempt_min = 0;  // The next attempt has at least this number.
  };
  // A node that gets no ranks for a while.
  struct Aside {
    int64_t until = 0;
    std::string why;
  };

  std::set<int> WorldSet() const;
  std::vector<int> Preferred(const std::set<int>& without = {}) const;
  WorldChoice Choose(const std::vector<int>& ids) const;
  void TryStart(int64_t now);
  void Begin(std::vector<int> ids, const std::string& note, int64_t now);
  void GiveUpGathering();
  void GiveUp(int id);
  void TakeOver(const AttemptMemory& memory, int64_t now);
  void LoseAwaited(int number, const std::string& why, int64_t now);
  void TryGrow(int64_t now);
  void EndAttempt(bool save, const std::string& why, int64_t now);
  void LoseSilent(int64_t now);
  void CheckOver(int64_t now);
  bool MayBeLoss() const;
  bool IsOfLostNode(const RankEnd& cause) const;
  std::vector<const Member*> Reporters() const;
  int CodeOfAttempt() const;
  int SignalOfAttempt() const;
  void Conclude(int64_t now);
  bool JobWasStopped() const;
  std::optional<RankEnd> Cause() const;
  void DecideRestart(const std::optional<RankEnd>& cause, bool has_progress, int64_t now);
  void WaitUntil(int64_t start, const std::string& why);
  void ParkSpares(int64_t now);
  void DismissLeavers();
  void End(int code, const std::string& why);
  void NoteUnable(int id, int64_t now);
  size_t PlaceOfTrouble(const RankEnd& cause) const;
  std::map<int, std::string> FailedHosts() const;
  bool GoesRound(int number, const std::string& trouble) const;
  bool SetFailedHostsAside(const std::optional<RankEnd>& cause, int64_t now);
  void SetAside(int id, const std::string& error, int64_t now);
  void KeepAside(const std::vector<ElasticNode>& world, int64_t now);
  static std::string TextOfAside(const ElasticNode& node, const Aside& aside, int64_t now);
  void EndAsides(int64_t now);
  void ForgetOtherHost(const ElasticNode& node);
  void ForgetFailures();
  Member* InWorld(int id);

  const ElasticOptions options_;
  std::map<int, Member> members_;
  std::vector<ElasticAction> actions_;
  Phase phase_ = Phase::kGathering;
  Attempt attempt_;  // The present or the last one.
  FailureCounts failures_;
  std::map<int, Aside> aside_;  // By the nodes' numbers.
  Adoption adoption_;
  std::string why_;      // Why the next attempt begins.
  int stop_signal_ = 0;  // The user stops the job.
  ElasticAction end_;    // Valid when ended.
  // Times at which something is due; kNever: nothing.
  int64_t gather_until_;
  int64_t last_call_until_ = kNever;
  int64_t start_at_;
  int64_t grow_at_ = kNever;
};

// Whether a signal that came to the agent of node `number` stops the job. SIGTERM and SIGUSR1, by
// which schedulers take a node away, are for that node alone unless it has the coordinator. Pure.
bool StopsJob(int signal, int number);

}  // namespace dtrain::launcher
