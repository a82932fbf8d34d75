// The supervisor's view of the other nodes' agents: a log of orders that all agents read in the
// same order through the coordinator's store.
//
// A seam: several nodes use StorePeers, one node has NoPeers, tests use a fake. Used by the
// supervisor's thread.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "launcher/ranks/rank_end.h"

namespace dtrain::launcher {

// An agent's call of the coordinator's store, at most.
inline constexpr absl::Duration kStoreCallTimeout = absl::Seconds(10);

// A message of one agent to all.
struct Order {
  enum class Kind {
    kStop,   // A stop signal was received: forward `signal`.
    kFail,   // A rank failed by itself: each agent stops its ranks.
    kEnded,  // All ranks of `node` have ended.
    kAsk,    // Somebody asks how the ranks are: each agent answers. `node` is -1.
    kLook,   // `node` has shared at once what the one above it is to look at.
  };
  Kind kind = Kind::kEnded;
  int node = 0;
  int signal = 0;
  // kStop: for a change of the job's nodes. Not sent: it follows from who was told to stop.
  bool job_goes_on = false;
  RankEnd end;
  std::string answers = {};  // kAsk: names the question (AnswerKey).
  // kEnded: the newest step that is durable, as far as `node` sees rank 0's records; -1: none.
  int64_t durable_step = -1;

  std::string Encode() const;
  static absl::StatusOr<Order> Parse(absl::string_view text);
};

// Tells the others that a node starts no ranks, of which `rank` is the first, so that they do not
// wait for them.
Order CannotStartOrder(int node, int rank, const std::string& host, const absl::Status& why);

class Peers {
 public:
  virtual ~Peers() = default;
  // Becomes readable when Take has something, or the coordinator is lost.
  virtual int poll_fd() const = 0;
  // Orders of other nodes since the last call. Never blocks.
  virtual std::vector<Order> Take() = 0;
  // Not OK when a node or the coordinator is gone; the message names it.
  virtual absl::Status health() const = 0;
  // Sends `order` to all agents, with this node as `order.node`. Never blocks for long; health()
  // tells of a lost coordinator.
  virtual void Publish(Order order) = 0;
  virtual int nodes() const = 0;
  // Replaces what this node tells the one above it in the tree of nodes of its ranks, which is sent
  // about once a second. Never blocks.
  virtual void Share(std::string /*summary*/) {}
  // The same, sent at once: the node above gets the order kLook with it. Never blocks for long.
  virtual void ShareAtOnce(std::string summary) { Share(std::move(summary)); }
  // Gives the texts that the nodes below this one have shared since the last call, with their
  // numbers. Never blocks.
  virtual std::vector<std::pair<int, std::string>> TakeShared() { return {}; }
  // Tells the nodes that wait as spares that this one keeps a process in reserve. Blocks for a
  // second at most.
  virtual void TellReserve() {}
  // Answers a question (kAsk) for this node. Blocks for a second at most.
  virtual void Answer(const Order& /*question*/, const std::string& /*text*/) {}
};

// The node is the only one.
class NoPeers final : public Peers {
 public:
  int poll_fd() const override { return -1; }  // poll() passes it over.
  std::vector<Order> Take() override { return {}; }
  absl::Status health() const override { return absl::OkStatus(); }
  void Publish(Order /*order*/) override {}
  int nodes() const override { return 1; }
};

}  // namespace dtrain::launcher
