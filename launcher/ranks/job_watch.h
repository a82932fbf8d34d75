// Watches the ranks of one attempt for hangs and stragglers, on this node and, on node 0, on all
// nodes: a thin shell around the decisions in launcher/watch/. Used by the supervisor's thread.
//
// Each node tells the one above it in the tree of nodes (node_tree.h) once a second of its ranks
// and of those of the nodes below it, and at once when one of them seems to hang. Node 0 alone
// decides, because it alone knows them all.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/agent_channel.h"
#include "launcher/nodes/peers.h"
#include "launcher/ranks/process_sample.h"
#include "launcher/ranks/rank_end.h"
#include "launcher/records/reporter.h"
#include "launcher/watch/hang.h"
#include "launcher/watch/rank_tracker.h"
#include "launcher/watch/straggler.h"

namespace dtrain::launcher {

struct JobWatchOptions {
  int node = 0;
  int world_size = 1;
  int attempt = 0;
  std::string host;
};

class JobWatch {
 public:
  // Both outlive this object.
  JobWatch(JobWatchOptions options, Peers& peers, Reporter& reporter);

  void Take(const AgentMessage& message, int64_t now_nanos);
  void Ended(int rank) { tracker_.Ended(rank); }
  // Looks, if that is due: says stragglers, tells node 0, and gives the end that stands for a hang
  // when there is one (RankEnd::hang), without its order. The verdict rests on the state of this
  // node's processes at that moment.
  std::optional<RankEnd> Look(int64_t now_nanos);
  // Another node has told of a rank that may hang: the next look is due.
  void LookAtOnce(int64_t now_nanos);
  // The ranks of this node that have sent a beat.
  std::vector<RankView> LocalViews() const { return tracker_.Views(looked_nanos_); }
  // The ranks of the nodes below this one, as those have last said; on node 0 those of all others.
  std::vector<RankView> OtherViews(int64_t now_nanos) const;
  // Looks are due five times a second, and at the moment at which a limit of a rank passes.
  absl::Duration UntilLook(int64_t now_nanos) const;

 private:
  struct Shared {
    NodeSummary summary;
    int64_t seen_nanos = 0;
    size_t hash = 0;  // The hash of the document's text.
  };
  struct Cpu {
    uint64_t wait_nanos = 0;
    int64_t noted_nanos = 0;
    double wait_share = 0;
  };
  void Sample(int64_t now_nanos);
  void PlanLook(const StepStatistics& steps);
  void NoteCpuWait(const AgentMessage& message, int64_t now_nanos);
  void TakeShared(int64_t now_nanos);
  void Share(int64_t now_nanos, bool is_over);
  void TakeBlock(int rank, const BlockTimes& block);
  void SayStragglers();
  // Those of this node and, as far as they are fresh, of the nodes below it.
  std::vector<RankView> AllViews(int64_t now_nanos) const;
  StepStatistics AllSteps() const;
  RankEnd EndOf(const Hang& hang, const std::vector<RankView>& views) const;

  const JobWatchOptions options_;
  Peers& peers_;
  Reporter& reporter_;
  RankTracker tracker_;
  StragglerFinder stragglers_;
  std::map<int, BlockCollector> collectors_;
  std::map<int, Cpu> cpu_;
  std::map<int, Shared> shared_;  // By node.
  Json blocks_to_share_ = Json::array();
  int64_t looked_nanos_ = 0;
  int64_t look_nanos_ = 0;   // When the next look is due.
  int64_t limit_nanos_ = 0;  // When the next limit passes, as far as the last look could know.
  int64_t sampled_nanos_ = 0;
  int64_t exchanged_nanos_ = 0;
  // Since when looks, on another node than 0, find a rank that hangs. 0: the last found none.
  int64_t over_nanos_ = 0;
};

}  // namespace dtrain::launcher
