// bench_launch_start RANKS...: the start of an elastic job of so many ranks, eight on each node,
// with the real messages and decisions but without network and processes. Each agent joins, the
// coordinator takes them into the world, each agent reads the order to start, each rank says hello
// and sends its first beat, and the agents report on their ranks. Ready is when the coordinator
// knows all ranks. All of it runs on this machine, the agents on as many threads as it has CPUs; in
// a real job each has a host of its own. Prints {"ranks", "nodes", "seconds"} for each size.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/agent_channel.h"
#include "base/check.h"
#include "base/clock.h"
#include "launcher/nodes/elastic_job.h"
#include "launcher/nodes/lobby.h"
#include "launcher/watch/rank_view.h"

namespace dtrain::launcher {
namespace {

constexpr int kRanksOfNode = 8;

// Calls `work` for each number below `count`, on all CPUs.
void ForEach(int count, const std::function<void(int)>& work) {
  std::atomic<int> next{0};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1U, std::thread::hardware_concurrency()); ++i) {
    threads.emplace_back([&] {
      for (int number = next++; number < count; number = next++) {
        work(number);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

ElasticNode NodeOf(int number) {
  return {.number = number, .host = absl::StrFormat("node-%05d", number), .ranks = kRanksOfNode};
}

// The agents' joins, and what the coordinator makes of them: the order to start.
std::string Meet(int nodes) {
  std::vector<std::string> joins(static_cast<size_t>(nodes));
  ForEach(nodes, [&](int node) {
    const LobbyMessage join{.kind = LobbyMessage::Kind::kJoin,
                            .from = absl::StrCat("agent ", node),
                            .node = NodeOf(node)};
    joins[static_cast<size_t>(node)] = join.Encode();
  });
  const int64_t now = Clock::Real().MonotonicNanos();
  ElasticJob job({.nodes_min = nodes, .nodes_max = nodes}, now);
  std::vector<std::string> names;
  std::vector<ElasticNode> members;
  for (const std::string& text : joins) {
    const absl::StatusOr<LobbyMessage> join = LobbyMessage::Parse(text);
    DT_CHECK(join.ok()) << join.status().ToString();
    names.push_back(join->from);
    members.push_back(join->node);
    job.Join(static_cast<int>(names.size()) - 1, join->node, now);
  }
  const std::vector<ElasticAction> actions = job.TakeActions();
  DT_CHECK(actions.size() == 1 && actions[0].kind == ElasticAction::Kind::kStart)
      << actions.size() << " actions";
  LobbyOrder order{.kind = LobbyOrder::Kind::kStart, .attempt = actions[0].attempt};
  for (const int id : actions[0].nodes) {
    order.names.push_back(names[static_cast<size_t>(id)]);
    order.nodes.push_back(members[static_cast<size_t>(id)]);
  }
  return order.Encode();
}

AgentMessage Sent(const AgentMessage& message) {
  absl::StatusOr<AgentMessage> read = AgentMessage::Parse(message.Encode());
  DT_CHECK(read.ok()) << read.status().ToString();
  return *std::move(read);
}

// An agent that reads the order and hears of its ranks; gives its report on them.
std::string StartNode(const std::string& text, int node) {
  const absl::StatusOr<LobbyOrder> order = LobbyOrder::Parse(text);
  DT_CHECK(order.ok()) << order.status().ToString();
  const auto mine =
      std::find(order->names.begin(), order->names.end(), absl::StrCat("agent ", node));
  DT_CHECK(mine != order->names.end()) << "node " << node;
  int first = 0;
  for (auto before = order->names.begin(); before != mine; ++before) {
    first += order->nodes[static_cast<size_t>(before - order->names.begin())].ranks;
  }
  NodeSummary summary{.attempt = order->attempt, .ranks = {}, .steps = {}};
  for (int rank = first; rank < first + kRanksOfNode; ++rank) {
    AgentMessage message{.kind = AgentMessage::Kind::kHello, .rank = rank, .pid = 1000 + rank};
    message.text = "runs/simulated";
    Sent(message);
    message.kind = AgentMessage::Kind::kBeat;
    message.phase = "start";
    message.groups = {{.group = "world"}};
    message = Sent(message);
    RankView view;
    view.rank = message.rank;
    view.node = node;
    view.pid = message.pid;
    view.host = NodeOf(node).host;
    view.phase = message.phase;
    view.groups = message.groups;
    summary.ranks.push_back(view);
  }
  return EncodeSummary(summary);
}

double SecondsToStart(int ranks) {
  const int nodes = ranks / kRanksOfNode;
  const int64_t begin = Clock::Real().MonotonicNanos();
  const std::string order = Meet(nodes);
  std::vector<std::string> summaries(static_cast<size_t>(nodes));
  ForEach(nodes, [&](int node) { summaries[static_cast<size_t>(node)] = StartNode(order, node); });
  std::vector<bool> known(static_cast<size_t>(ranks));
  for (const std::string& text : summaries) {
    const absl::StatusOr<NodeSummary> summary = ParseSummary(text);
    DT_CHECK(summary.ok()) << summary.status().ToString();
    for (const RankView& view : summary->ranks) {
      known.at(static_cast<size_t>(view.rank)) = true;
    }
  }
  DT_CHECK(std::count(known.begin(), known.end(), true) == ranks)
      << std::count(known.begin(), known.end(), true) << " of " << ranks << " ranks";
  return static_cast<double>(Clock::Real().MonotonicNanos() - begin) * 1e-9;
}

int Main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    int ranks = 0;
    if (!absl::SimpleAtoi(argv[i], &ranks) || ranks < kRanksOfNode || ranks % kRanksOfNode != 0) {
      absl::FPrintF(stderr, "bench_launch_start: \"%s\" ranks; allowed: multiples of %d\n", argv[i],
                    kRanksOfNode);
      return 64;
    }
    absl::PrintF("{\"ranks\": %d, \"nodes\": %d, \"seconds\": %.6f}\n", ranks, ranks / kRanksOfNode,
                 SecondsToStart(ranks));
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace dtrain::launcher

int main(int argc, char** argv) { return dtrain::launcher::Main(argc, argv); }
