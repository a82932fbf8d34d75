#include "launcher/jobs/job_view.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
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

// Threads that ask jobs. With more jobs than these, the last ones may not be asked in time.
constexpr size_t kAskersMax = 64;

absl::StatusOr<std::string> OwnAnswer(const JobFacts& job, Deadline deadline) {
  return AskAgent(job.socket, Earlier(deadline, Deadline::After(kOwnAnswerTime)));
}

absl::StatusOr<Json> AskOwnNode(const JobFacts& job, Deadline deadline) {
  DT_ASSIGN_OR_RETURN(const std::string text, OwnAnswer(job, deadline));
  DT_ASSIGN_OR_RETURN(Json answer, ParseJson(text, "the agent's answer"));
  answer.erase("others");  // They belong to the view of all nodes.
  return answer;
}

absl::StatusOr<Json> AskJob(const JobFacts& job, Deadline deadline) {
  if (job.nodes_socket.empty()) {
    return AskOwnNode(job, deadline);
  }
  DT_ASSIGN_OR_RETURN(ControlClient client, ControlClient::Ask(job.nodes_socket, kNodesQuestion));
  DT_ASSIGN_OR_RETURN(const std::string text, client.Rest(deadline));
  DT_ASSIGN_OR_RETURN(JobNodes nodes, JobNodes::Parse(text));
  for (NodeAnswer& node : nodes.nodes) {
    const bool is_own = node.has_ranks && node.node.number == job.node_rank;
    if (is_own && !node.text.has_value()) {  // No other node is needed to learn of it.
      if (absl::StatusOr<std::string> own = OwnAnswer(job, deadline); own.ok()) {
        node.text = *std::move(own);
      }
    }
  }
  return StatusJson(nodes);
}

}  // namespace

absl::StatusOr<Json> AskOwnNode(const JobFacts& job) {
  return AskOwnNode(job, Deadline::After(kOwnAnswerTime));
}

absl::StatusOr<Json> AskJob(const JobFacts& job) {
  return AskJob(job, Deadline::After(kAllAnswersTime));
}

std::vector<absl::StatusOr<Json>> AskJobs(absl::Span<const JobFacts> jobs, const AskTimes& times) {
  const Deadline nodes = Deadline::After(times.nodes);
  const Deadline all = Deadline::After(times.nodes + times.own);
  std::vector<absl::StatusOr<Json>> answers(jobs.size(), absl::UnavailableError("not asked"));
  std::atomic<size_t> next{0};
  const auto ask = [&] {
    for (size_t i = next++; i < jobs.size(); i = next++) {
      answers[i] = AskJob(jobs[i], nodes);
      if (!answers[i].ok() && !jobs[i].nodes_socket.empty()) {
        answers[i] = AskOwnNode(jobs[i], all);
      }
    }
  };
  std::vector<std::thread> askers(std::min(jobs.size(), kAskersMax));
  for (std::thread& asker : askers) {
    asker = std::thread(ask);
  }
  for (std::thread& asker : askers) {
    asker.join();
  }
  return answers;
}

}  // namespace dtrain::launcher
