// An agent's knowledge of a rank at one moment: the input of the decisions about hangs. Plain
// values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/agent_channel.h"
#include "base/json.h"

namespace dtrain::launcher {

struct RankView {
  int rank = 0;
  int node = 0;
  int pid = 0;
  std::string host;
  int64_t step = -1;
  std::string phase;
  HangLimits limits;
  std::vector<GroupProgress> groups;
  // Time since the rank last showed progress, without the time in which it waited for a CPU or its
  // agent did not look.
  double still_s = 0;
  double silent_s = 0;          // Time since its last message of any kind.
  bool is_stopped = false;      // A signal has stopped its process (state T).
  bool waits_for_disk = false;  // One of its threads is in state D.
  bool is_debugged = false;     // A debugger has stopped its process.
  bool has_ended = false;       // It has said so, or its process is gone.

  // The group in whose collective it is; null: it is outside of collectives.
  const GroupProgress* Inside() const;
  // Its progress in the group of that name; null: it has entered none of its collectives.
  const GroupProgress* In(absl::string_view group) const;
};

// The steps' times that the limit is learnt from.
struct StepStatistics {
  int64_t steps = 0;  // Steps that each rank has finished.
  double p99_s = 0;
  // The longest time without progress in a step, behind the first steps: it was no hang.
  double pause_s = 0;
};

// An agent's report on its ranks, and on those of the nodes below it in the tree of nodes.
struct NodeSummary {
  int attempt = 0;
  std::vector<RankView> ranks;
  StepStatistics steps;
  Json blocks = Json::array();  // straggler.h.
};
inline constexpr size_t kSummaryBytesMax = size_t{64} << 10;
// For what an agent has gathered from others; the store takes values of 1 MiB.
inline constexpr size_t kGatheredBytesMax = size_t{960} << 10;

// Calls are cut when the text would be too long, then the blocks are left out.
std::string EncodeSummary(const NodeSummary& summary, size_t bytes_max = kSummaryBytesMax);
absl::StatusOr<NodeSummary> ParseSummary(absl::string_view text);

// "rank 1 (host b, pid 4711)".
std::string RankName(const RankView& view);

}  // namespace dtrain::launcher
