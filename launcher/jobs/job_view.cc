#include "launcher/jobs/job_view.h"

#include <string>
#include <utility>

#include "base/deadline.h"
#include "base/status.h"
#include "launcher/jobs/control_socket.h"
#include "launcher/jobs/job_status.h"
#include "launcher/ranks/agent_socket.h"

namespace dtrain::launcher {
namespace {

constexpr absl::Duration kOwnAnswerTime = absl::Seconds(2);
// An agent waits for the store, for the answers and for what the lobby has.
constexpr absl::Duration kAllAnswersTime = absl::Seconds(10);

absl::StatusOr<std::string> OwnAnswer(const JobFacts& job) {
  return AskAgent(job.socket, Deadline::After(kOwnAnswerTime));
}

}  // namespace

absl::StatusOr<Json> AskOwnNode(const JobFacts& job) {
  DT_ASSIGN_OR_RETURN(const std::string text, OwnAnswer(job));
  DT_ASSIGN_OR_RETURN(Json answer, ParseJson(text, "the agent's answer"));
  answer.erase("others");  // They belong to the view of all nodes.
  return answer;
}

absl::StatusOr<Json> AskJob(const JobFacts& job) {
  if (job.nodes_socket.empty()) {
    return AskOwnNode(job);
  }
  DT_ASSIGN_OR_RETURN(ControlClient client, ControlClient::Ask(job.nodes_socket, kNodesQuestion));
  DT_ASSIGN_OR_RETURN(const std::string text, client.Rest(Deadline::After(kAllAnswersTime)));
  DT_ASSIGN_OR_RETURN(JobNodes nodes, JobNodes::Parse(text));
  for (NodeAnswer& node : nodes.nodes) {
    const bool is_own = node.has_ranks && node.node.number == job.node_rank;
    if (is_own && !node.text.has_value()) {  // No other node is needed to learn of it.
      if (absl::StatusOr<std::string> own = OwnAnswer(job); own.ok()) {
        node.text = *std::move(own);
      }
    }
  }
  return StatusJson(nodes);
}

}  // namespace dtrain::launcher
