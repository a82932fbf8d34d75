// How a coordinator that follows another one takes over the attempt that runs.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "launcher/nodes/elastic_job.h"

namespace dtrain::launcher {

// Agents that come back may know attempts of different age, because the last order of the former
// coordinator may have reached only some of them. The newest counts: it began when every node of
// those before it had reported or was lost. Of two coordinators the later one's is newer, whatever
// the numbers are.
void ElasticJob::Adopt(int id, const ElasticNode& node, const AttemptMemory& memory,
                       int64_t now_nanos) {
  if (phase_ == Phase::kEnded || memory.attempt < 0) {
    Join(id, node, now_nanos);
    return;
  }
  adoption_.attempt_min = std::max(adoption_.attempt_min, memory.attempt + 1);
  if (!adoption_.is_open) {
    GiveUp(id);
    return;
  }
  const std::pair<int64_t, int> age{memory.term, memory.attempt};
  if (age > std::pair(attempt_.term, attempt_.number)) {
    TakeOver(memory, now_nanos);
  }
  const auto place = std::find_if(attempt_.world.begin(), attempt_.world.end(), [&](int other) {
    const auto member = members_.find(other);
    return other < 0 && member != members_.end() && member->second.node.number == node.number;
  });
  if (age < std::pair(attempt_.term, attempt_.number) || place == attempt_.world.end()) {
    const bool has_ranks =
        !memory.report.has_value() &&
        std::any_of(memory.nodes.begin(), memory.nodes.end(),
                    [&](const ElasticNode& other) { return other.number == node.number; });
    if (has_ranks) {
      GiveUp(id);
    } else {
      Join(id, node, now_nanos);  // It is a spare, or never began this attempt.
    }
    return;
  }
  members_.erase(*place);
  members_.emplace(id, Member{node});
  *place = id;
  if (members_.begin()->first >= 0) {
    adoption_.until = kNever;
  }
  if (memory.report.has_value()) {
    Report(id, *memory.report, now_nanos);
  }
}

// An agent that has ranks of an attempt with which the job does not go on ends them and comes back.
void ElasticJob::GiveUp(int id) {
  actions_.push_back({.kind = ElasticAction::Kind::kDismiss,
                      .nodes = {id},
                      .code = kExitTemporary,
                      .why = "the job has gone on without it"});
}

// The nodes that have joined as new ones have none of its ranks.
void ElasticJob::TakeOver(const AttemptMemory& memory, int64_t now) {
  while (!members_.empty() && members_.begin()->first < 0) {
    members_.erase(members_.begin());
  }
  for (const int id : attempt_.world) {  // Those that have ranks of an attempt before it.
    const auto member = members_.find(id);
    if (member != members_.end() && !member->second.report.has_value()) {
      GiveUp(id);
      members_.erase(member);
    }
  }
  attempt_ = {.number = memory.attempt, .term = memory.term};
  const int64_t job_term = failures_.job_term;
  failures_ = memory.failures;
  HasBegun(job_term);
  KeepAside(memory.nodes, now);
  phase_ = Phase::kRunning;
  why_.clear();
  for (auto& [id, member] : members_) {
    member.report.reset();
    member.is_parked = false;
  }
  for (const ElasticNode& node : memory.nodes) {
    const int id = adoption_.next_id--;
    attempt_.world.push_back(id);
    const bool is_new = std::any_of(members_.begin(), members_.end(), [&](const auto& entry) {
      return entry.second.node.number == node.number;
    });
    if (is_new) {
      attempt_.lost.push_back(node.Name());
    } else {
      members_.emplace(id, Member{node});
    }
  }
  adoption_.until = now + absl::ToInt64Nanoseconds(options_.adoption);
  grow_at_ = now + absl::ToInt64Nanoseconds(options_.last_call);
  if (!attempt_.lost.empty()) {
    EndAttempt(/*save=*/false,
               absl::StrCat(absl::StrJoin(attempt_.lost, ", "), " came back without its ranks"),
               now);
  } else {
    ParkSpares(now);  // Those that came before the agents of the attempt.
  }
}

// A job that has begun has no attempt 0 any more: programs know a job's start by that number.
void ElasticJob::HasBegun(int64_t job_term) {
  adoption_.attempt_min = std::max(adoption_.attempt_min, job_term != 0 ? 1 : 0);
  if (job_term != 0 && (failures_.job_term == 0 || job_term < failures_.job_term)) {
    failures_.job_term = job_term;
  }
}

// Gives up the awaited node of that number, or all.
void ElasticJob::LoseAwaited(int number, const std::string& why, int64_t now) {
  std::vector<int> ids;
  for (const auto& [id, member] : members_) {
    if (id < 0 && (number == kAnyNode || member.node.number == number)) {
      ids.push_back(id);
    }
  }
  adoption_.until = number == kAnyNode ? kNever : adoption_.until;
  for (const int id : ids) {
    Lose(id, why, now);
  }
}

}  // namespace dtrain::launcher
