// The messages between the agents of an elastic job and its coordinator. Values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/nodes/elastic_job.h"

namespace dtrain::launcher {

// The epoch of the lobby's store. No attempt has this number.
inline constexpr uint64_t kLobbyEpoch = uint64_t{1} << 40;

// From an agent to the coordinator.
struct LobbyMessage {
  enum class Kind { kJoin, kReport, kLeave, kStop, kDrain };
  Kind kind = Kind::kJoin;
  std::string from;       // The name of the agent's connection.
  ElasticNode node = {};  // kJoin.
  // kJoin of an agent that another coordinator has led before.
  std::optional<AttemptMemory> memory = {};
  int64_t job_term = 0;     // kJoin: as LobbyMemory has it.
  NodeReport report = {};   // kReport.
  int signal = 0;           // kStop.
  std::string target = {};  // kDrain: the number or a name of a node.

  std::string Encode() const;
  static absl::StatusOr<LobbyMessage> Parse(absl::string_view text);
};

// From the coordinator to all agents.
struct LobbyOrder {
  // kGiveUp: the coordinator itself cannot go on, and says why; all end with `code`.
  enum class Kind { kStart, kStop, kPark, kDismiss, kEnd, kAnswer, kGiveUp };
  Kind kind = Kind::kStart;
  int attempt = 0;
  std::vector<std::string> names = {};  // Agents: kStart: by node rank; else to whom.
  std::vector<ElasticNode> nodes = {};  // kStart: as `names`.
  bool save = false;                    // kStop.
  bool job_goes_on = false;             // kStop: with other nodes, behind the save.
  int code = 0;                 // kDismiss, kEnd: the exit code. kAnswer: 0 if the node will leave.
  std::string text;             // Why; kAnswer: the name of the node, or why not.
  FailureCounts failures = {};  // kStart and kPark.
  // The term of the coordinator that gives it. It is no part of the text: whoever reads an order
  // knows from whom.
  int64_t term = 0;

  std::string Encode() const;
  static absl::StatusOr<LobbyOrder> Parse(absl::string_view text);
};

// Whether an order to start, which an agent has taken, begins the job: no coordinator before those
// that this launch of node 0 has started, the first of them in `first_term`, has begun an attempt
// of it.
bool BeginsJob(const LobbyOrder& start, int64_t first_term);

// The nodes of the job as its coordinator has them, for `dtrain status` and `dtrain ps`.
struct LobbyNodes {
  struct Row {
    ElasticNode node;
    int place = -1;  // Its node rank in the attempt; -1: it has no ranks there.
    // "trains", "leaving", "spare", "aside" (a spare that is set aside), "waiting", "lost", "out"
    // (its agent left because its host failed) or "left".
    std::string state;
    std::string why = {};
  };
  int attempt = -1;            // -1: none runs.
  std::vector<Row> rows = {};  // Those of the attempt first, by their places.
  double started_at = 0;       // When the job's first coordinator started, in Unix seconds.

  std::string Encode() const;
  static absl::StatusOr<LobbyNodes> Parse(absl::string_view text);
};

inline constexpr char kLobbyInbox[] = "lobby/in";  // A list (comm/net/store.h).
std::string LobbyOrderKey(int64_t number);
inline constexpr char kLobbyTermKey[] = "lobby/term";
// The coordinator writes its LobbyNodes there when they change.
inline constexpr char kLobbyNodesKey[] = "lobby/nodes";
// Where node 0 tells how its `attempt`, which the coordinator of `term` has begun, meets. A node
// that has read the order of another coordinator, with the same number, does not find it.
std::string MeetingKey(int64_t term, int attempt);
// The version of the coordinator's dtrain. It is there before the term.
inline constexpr char kLobbyVersionKey[] = "lobby/version";

// It is there once a process of the job's program waits in reserve (launcher/ranks/survivors.h) on
// one of the nodes that train, so that spares may have one too.
inline constexpr char kLobbyReserveKey[] = "lobby/reserve";

// An agent's memory of a coordinator, which it tells the next one.
struct LobbyMemory {
  int64_t term = 0;  // 0: it has had none.
  std::optional<AttemptMemory> attempt = {};
  // The term of the coordinator that began the job's first attempt; 0: it knows of no attempt.
  int64_t job_term = 0;
};

}  // namespace dtrain::launcher
