// What `dtrain status` shows of a job on several nodes: pure functions of what its agents and its
// coordinator have said.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/json.h"
#include "launcher/nodes/elastic_job.h"
#include "launcher/nodes/lobby_messages.h"

namespace dtrain::launcher {

struct NodeAnswer {
  ElasticNode node;
  bool has_ranks = true;                 // In the attempt that runs.
  std::string state = "trains";          // LobbyNodes::Row::state has the others.
  std::string why = {};                  // The reason of a loss.
  std::optional<std::string> text = {};  // Its agent's words; nothing: no answer.
};

// The nodes of a job as one of its agents knows them, for a command of its host.
struct JobNodes {
  int attempt = -1;                    // -1: none runs.
  std::vector<NodeAnswer> nodes = {};  // Those with ranks first, in the order of their ranks.
  std::string note = {};               // Says why something could not be learnt.
  double started_at = 0;               // When the job began, in Unix seconds; 0: not known.

  std::string Encode() const;
  static absl::StatusOr<JobNodes> Parse(absl::string_view text);
};

// Adds what the coordinator knows: the states of the nodes, those that have no ranks, and when the
// job began.
void AddMembers(const LobbyNodes& members, JobNodes& job);

// The document of `dtrain status --json`: "attempt", "world_size", "phase", "ranks" (each with its
// "node" and "host"), "node_states", and "note" and "job_started_at" if they are known. A rank
// whose node does not answer has null for "alive", and the step, the phase and the age that another
// node has last heard of.
Json StatusJson(const JobNodes& job);

// `dtrain ps` shows this of a job.
struct JobSummary {
  int64_t step = -1;      // The highest one of its ranks; -1: none has said one.
  int nodes = -1;         // Those that have ranks; -1: not known.
  double started_at = 0;  // JobNodes::started_at.
};
// `has_nodes`: the job has several, of which the document of one agent says nothing.
JobSummary Summarize(const Json& status, bool has_nodes);

// A table of the document's ranks, and of its nodes that have none. Without "node_states", as in a
// job of one node, the rows do not name nodes.
std::string StatusTable(const Json& status);

// "4 ranks on 2 nodes, of which 1 does not answer".
std::string CountNodes(const Json& status);

}  // namespace dtrain::launcher
