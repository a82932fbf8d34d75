// How far the ranks of a node are with a stop, as lines that say how long it has taken and what is
// left of the time that the node has for it (--stop-grace). There is one such time a node: it
// begins with the stop signal, and all ranks and all stages share it. Pure: time is an argument.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/agent_channel.h"
#include "launcher/rank_plan.h"

namespace dtrain::launcher {

class StopProgress {
 public:
  // `slots`: the ranks of this node.
  explicit StopProgress(const std::vector<RankSlot>& slots);

  // A stop signal has come; without one nothing is said. Only the first call counts.
  void Begin(int64_t now_nanos, absl::Duration budget);
  // A rank says (AgentMessage::Kind::kStopping) or shows where it is. The line to be said when all
  // ranks of the node have come to a stage, once for each.
  std::optional<std::string> Take(const AgentMessage& message, int64_t now_nanos);
  std::optional<std::string> Ended(int rank, int64_t now_nanos);

 private:
  enum class Stage { kTraining, kStepFinished, kStepSaved, kEnded };

  std::optional<std::string> Reach(int rank, Stage stage, int64_t now_nanos);

  std::map<int, Stage> stages_;    // By rank.
  Stage said_ = Stage::kTraining;  // What a line has said of all ranks.
  int64_t step_ = 0;               // Behind which they stop.
  std::optional<int64_t> begin_nanos_;
  absl::Duration budget_;
};

}  // namespace dtrain::launcher
