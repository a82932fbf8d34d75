#include "launcher/nodes/world_choice.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace dtrain::launcher {
namespace {

std::string Count(int64_t count, const char* noun) {
  return absl::StrFormat("%d %s%s", count, noun, count == 1 ? "" : "s");
}

}  // namespace

bool Divides(const BatchSizes& batch, int64_t ranks) {
  return batch.global == 0 || batch.global % (batch.micro * ranks) == 0;
}

WorldChoice ChooseWorld(const WorldRequest& request) {
  const int live = static_cast<int>(request.nodes.size());
  const int most = std::min(live, request.nodes_max);
  std::vector<int64_t> ranks_of = {0};  // By number of nodes.
  for (const WorldNode& node : request.nodes) {
    ranks_of.push_back(ranks_of.back() + node.ranks);
  }
  const auto ranks = [&](int nodes) { return ranks_of[static_cast<size_t>(nodes)]; };
  WorldChoice choice;
  for (int nodes = most; nodes >= request.nodes_min && choice.nodes == 0; --nodes) {
    choice.nodes = Divides(request.batch, ranks(nodes)) ? nodes : 0;
  }
  if (most < request.nodes_min || choice.nodes == most) {
    return choice;
  }
  choice.note = absl::StrFormat(
      "%s with %s are refused: train_batch_size %d is not a multiple of micro-batch %d x %s = %d",
      Count(most, "node"), Count(ranks(most), "rank"), request.batch.global, request.batch.micro,
      Count(ranks(most), "rank"), request.batch.micro * ranks(most));
  if (choice.nodes == 0) {
    absl::StrAppendFormat(&choice.note, ", and no smaller number of nodes from %d on divides it",
                          request.nodes_min);
    return choice;
  }
  std::vector<std::string> idle;
  for (int node = choice.nodes; node < most; ++node) {
    idle.push_back(request.nodes[static_cast<size_t>(node)].name);
  }
  absl::StrAppendFormat(&choice.note, "; %s with %s train, idle: %s", Count(choice.nodes, "node"),
                        Count(ranks(choice.nodes), "rank"), absl::StrJoin(idle, ", "));
  return choice;
}

}  // namespace dtrain::launcher
