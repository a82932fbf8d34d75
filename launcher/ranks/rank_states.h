// Keeps the last words of this node's ranks about themselves, which come over the agent's socket,
// for their ends and for `dtrain status` (launcher/jobs/job_status.h reads the rows). Not
// thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/agent_channel.h"
#include "base/json.h"
#include "launcher/ranks/rank_end.h"
#include "launcher/watch/rank_view.h"

namespace dtrain::launcher {

class RankStates {
 public:
  void Add(int rank) { states_.try_emplace(rank); }
  bool Has(int rank) const { return states_.contains(rank); }
  // REQUIRES: Has(message.rank).
  void Take(const AgentMessage& message, int64_t now_nanos);
  // Whether each has ended a step.
  bool AllTrain() const;
  // Sets the last step, phase and error of the rank of `end`. REQUIRES: Has(end.rank).
  void FillIn(RankEnd& end) const;
  // One row for each, in the order of ranks. `alive`: those that have not ended.
  Json Rows(const std::vector<int>& alive, int64_t now_nanos) const;

 private:
  struct State {
    int64_t step = -1;
    std::string phase;
    int64_t beat_nanos = 0;  // When the rank last said where it is; 0: never.
    std::string error;       // The first one.
  };

  std::map<int, State> states_;  // By rank.
};

// The rows of ranks of other nodes, as those have last said: `dtrain status` needs them if they do
// not answer themselves. At most as many as an answer has room for.
Json RowsOfOthers(const std::vector<RankView>& views);

}  // namespace dtrain::launcher
