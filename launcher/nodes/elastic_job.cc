#include "launcher/nodes/elastic_job.h"

#include <algorithm>
#include <csignal>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"

namespace dtrain::launcher {
namespace {

// How often a job asks whether it could grow with the spares that it has.
constexpr absl::Duration kGrowAgain = absl::Seconds(1);

int64_t Later(int64_t now, absl::Duration time) { return now + absl::ToInt64Nanoseconds(time); }

int CodeOfStop(int signal) { return signal == SIGINT ? kExitInterrupted : kExitTerminated; }

}  // namespace

std::string ElasticNode::Name() const {
  const bool has_alias = !alias.empty() && !absl::EqualsIgnoreCase(alias, host);
  return absl::StrFormat("node %d (host %s%s)", number, host,
                         has_alias ? absl::StrCat(", ", alias, " in the hostfile") : "");
}

ElasticJob::ElasticJob(const ElasticOptions& options, int64_t now_nanos)
    : options_(options),
      attempt_({.number = options.first_attempt - 1}),
      gather_until_(Later(now_nanos, options.join_timeout)),
      start_at_(options.is_successor ? Later(now_nanos, options.adoption) : 0) {}

std::vector<int> ElasticJob::world() const {
  return phase_ == Phase::kRunning || phase_ == Phase::kEnding ? attempt_.world
                                                               : std::vector<int>();
}

std::set<int> ElasticJob::WorldSet() const {
  const std::vector<int> ids = world();
  return {ids.begin(), ids.end()};
}

std::vector<ElasticJob::Standing> ElasticJob::Standings() const {
  std::vector<Standing> standings;
  const std::vector<int> ids = world();
  for (size_t place = 0; place < ids.size(); ++place) {
    const auto member = members_.find(ids[place]);
    if (member != members_.end()) {  // Otherwise it has left behind its report.
      standings.push_back({member->second.node, static_cast<int>(place), member->second.leaving});
    }
  }
  const std::set<int> placed(ids.begin(), ids.end());
  for (const auto& [id, member] : members_) {
    if (placed.count(id) == 0) {
      const auto aside = aside_.find(member.node.number);
      standings.push_back(
          {member.node, -1, member.leaving, aside == aside_.end() ? "" : aside->second.why});
    }
  }
  return standings;
}

ElasticJob::Member* ElasticJob::InWorld(int id) {
  const std::vector<int> ids = world();
  const auto member = members_.find(id);
  return member != members_.end() && std::count(ids.begin(), ids.end(), id) > 0 ? &member->second
                                                                                : nullptr;
}

// Node 0, then the nodes of the last world in its order, then the others as they came.
std::vector<int> ElasticJob::Preferred(const std::set<int>& without) const {
  std::vector<int> ids;
  std::set<int> added;
  const auto add = [&](int id) {
    const auto member = members_.find(id);
    if (member != members_.end() && !member->second.leaving && without.count(id) == 0 &&
        aside_.count(member->second.node.number) == 0 && added.insert(id).second) {
      ids.push_back(id);
    }
  };
  for (const auto& [id, member] : members_) {
    if (member.node.number == 0) {
      add(id);
    }
  }
  if (ids.empty()) {
    return ids;
  }
  std::for_each(attempt_.world.begin(), attempt_.world.end(), add);
  for (const auto& [id, member] : members_) {
    add(id);
  }
  return ids;
}

WorldChoice ElasticJob::Choose(const std::vector<int>& ids) const {
  WorldRequest request{{}, options_.nodes_min, options_.nodes_max, options_.batch};
  for (const int id : ids) {
    const ElasticNode& node = members_.at(id).node;
    request.nodes.push_back({node.Name(), node.ranks});
  }
  return ChooseWorld(request);
}

void ElasticJob::Join(int id, const ElasticNode& node, int64_t now_nanos) {
  if (phase_ == Phase::kEnded) {
    actions_.push_back({.kind = ElasticAction::Kind::kDismiss,
                        .nodes = {id},
                        .code = end_.code,
                        .why = "the job has ended"});
    return;
  }
  LoseAwaited(node.number, "its agent was started again", now_nanos);
  for (const auto& [other, member] : members_) {
    if (member.node.number == node.number) {
      actions_.push_back(
          {.kind = ElasticAction::Kind::kDismiss,
           .nodes = {id},
           .code = kExitUsage,
           .why = absl::StrFormat("another agent, that of host %s, is node %d already; give each "
                                  "node its own --node-rank",
                                  member.node.host, node.number)});
      return;
    }
  }
  ForgetOtherHost(node);
  members_.emplace(id, Member{node});
  grow_at_ = std::max(grow_at_ == kNever ? 0 : grow_at_, Later(now_nanos, options_.last_call));
  TryStart(now_nanos);
  ParkSpares(now_nanos);
}

void ElasticJob::Lose(int id, const std::string& why, int64_t now_nanos) {
  const auto member = members_.find(id);
  if (member == members_.end()) {
    return;
  }
  const bool in_world = InWorld(id) != nullptr;
  const std::string name = member->second.node.Name();
  const bool had_reported = member->second.report.has_value();
  const bool is_first = member->second.node.number == 0;
  if (in_world && had_reported) {
    attempt_.gone.emplace(id, member->second);
    if (attempt_.unable.count(id) > 0) {  // The others' attempt ends because of it.
      attempt_.lost.push_back(name);
    }
  }
  members_.erase(member);
  if (!in_world || had_reported) {  // A spare, or one whose ranks have ended.
    CheckOver(now_nanos);
    return;
  }
  attempt_.lost.push_back(name);
  if (is_first && id >= 0) {  // With a negative id it is lost to a coordinator that lives.
    End(kExitTemporary, absl::StrFormat("%s is lost: %s", name, why));
    return;
  }
  EndAttempt(/*save=*/false, absl::StrFormat("%s is lost: %s", name, why), now_nanos);
  CheckOver(now_nanos);
}

void ElasticJob::Leave(int id, int64_t now_nanos) {
  if (InWorld(id) != nullptr) {
    Lose(id, "its agent has left", now_nanos);
  } else {
    members_.erase(id);
  }
}

void ElasticJob::Stop(int signal, int64_t now_nanos) {
  stop_signal_ = stop_signal_ == 0 ? signal : stop_signal_;
  if (world().empty()) {
    End(CodeOfStop(signal), "the job is stopped by the user");
  } else if (phase_ == Phase::kRunning) {
    EndAttempt(/*save=*/true, "the job is stopped by the user", now_nanos);
  }
}

absl::Status ElasticJob::Drain(int id, int64_t now_nanos) {
  const auto found = members_.find(id);
  if (found == members_.end() || phase_ == Phase::kEnded) {
    return absl::NotFoundError("the job has no such node");
  }
  Member& member = found->second;
  if (member.node.number == 0) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s has the job's coordinator and cannot be drained; stop the job with `dtrain stop` and "
        "start it with another node 0: it goes on where it was",
        member.node.Name()));
  }
  if (Choose(Preferred({id})).nodes == 0) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "without %s no number of nodes from %d to %d is left with which the job can "
        "go on; start another node first, or stop the job with `dtrain stop`",
        member.node.Name(), options_.nodes_min, options_.nodes_max));
  }
  member.leaving = true;
  if (InWorld(id) == nullptr) {
    DismissLeavers();
  } else if (phase_ == Phase::kRunning) {
    attempt_.is_planned = true;
    EndAttempt(/*save=*/true, absl::StrCat(member.node.Name(), " is drained"), now_nanos);
  }
  return absl::OkStatus();
}

void ElasticJob::Report(int id, const NodeReport& report, int64_t now_nanos) {
  Member* const member = InWorld(id);
  if (member == nullptr || report.attempt != attempt_.number || member->report.has_value()) {
    return;
  }
  member->report = report;
  NoteUnable(id, now_nanos);
  if (attempt_.reports_until == kNever) {
    // One that has saved, or is done, may have to wait for the others' saves or last steps.
    const bool is_calm = report.code == kExitOk || report.stop_signal != 0;
    const absl::Duration others = std::max(options_.stop_grace, options_.exit_barrier);
    attempt_.reports_until =
        Later(now_nanos, options_.reports + (is_calm ? others : absl::ZeroDuration()));
  }
  attempt_.settled_at =
      attempt_.settled_at == kNever ? Later(now_nanos, options_.settle) : attempt_.settled_at;
  CheckOver(now_nanos);
}

void ElasticJob::Tick(int64_t now_nanos) {
  EndAsides(now_nanos);
  switch (phase_) {
    case Phase::kGathering:
    case Phase::kWaiting:
      TryStart(now_nanos);
      return;
    case Phase::kRunning:
    case Phase::kEnding:
      if (now_nanos >= adoption_.until) {
        LoseAwaited(kAnyNode, "its agent has not come back to the coordinator", now_nanos);
      }
      if (now_nanos >= attempt_.reports_until) {
        LoseSilent(now_nanos);
      }
      CheckOver(now_nanos);
      if (phase_ == Phase::kRunning) {
        TryGrow(now_nanos);
      }
      return;
    case Phase::kEnded:
      return;
  }
}

void ElasticJob::TryStart(int64_t now) {
  if ((phase_ != Phase::kGathering && phase_ != Phase::kWaiting) || now < start_at_) {
    return;
  }
  std::vector<int> ids = Preferred();
  WorldChoice choice = Choose(ids);
  if (choice.nodes == 0 && now >= gather_until_ && !aside_.empty()) {
    aside_.clear();  // Rather than giving the job up, those that are set aside are tried.
    ids = Preferred();
    choice = Choose(ids);
  }
  if (choice.nodes == 0) {
    last_call_until_ = kNever;
    if (now >= gather_until_) {
      GiveUpGathering();
    }
    return;
  }
  // At the start others may be on their way. Later, those that are left are known.
  if (phase_ == Phase::kGathering && static_cast<int>(ids.size()) < options_.nodes_max) {
    if (last_call_until_ == kNever) {
      last_call_until_ = std::min(Later(now, options_.last_call), gather_until_);
    }
    if (now < last_call_until_) {
      return;
    }
  }
  Begin({ids.begin(), ids.begin() + choice.nodes}, choice.note, now);
}

void ElasticJob::Begin(std::vector<int> ids, const std::string& note, int64_t now) {
  attempt_ = {.number = std::max(attempt_.number + 1, adoption_.attempt_min),
              .world = std::move(ids)};
  adoption_.is_open = false;
  for (auto& [id, member] : members_) {
    member.report.reset();
  }
  grow_at_ = Later(now, options_.last_call);
  phase_ = Phase::kRunning;
  const std::string why = absl::StrCat(why_, why_.empty() || note.empty() ? "" : "; ", note);
  actions_.push_back({.kind = ElasticAction::Kind::kStart,
                      .attempt = attempt_.number,
                      .nodes = attempt_.world,
                      .why = why,
                      .failures = failures_});
  ParkSpares(now);
}

// Tells the nodes that came too late, are too many, or are set aside, what they wait for.
void ElasticJob::ParkSpares(int64_t now) {
  const std::set<int> ids = WorldSet();
  const size_t nodes = ids.size();
  for (auto& [id, member] : members_) {
    const bool is_spare = nodes > 0 && ids.count(id) == 0;
    if (is_spare && !member.is_parked) {
      const auto aside = aside_.find(member.node.number);
      actions_.push_back(
          {.kind = ElasticAction::Kind::kPark,
           .nodes = {id},
           .why = aside != aside_.end()
                      ? TextOfAside(member.node, aside->second, now)
                      : absl::StrFormat("%s is a spare: %d node%s train%s", member.node.Name(),
                                        nodes, nodes == 1 ? "" : "s", nodes == 1 ? "s" : ""),
           .failures = failures_});
    }
    member.is_parked = is_spare;
  }
}

void ElasticJob::GiveUpGathering() {
  const std::vector<int> ids = Preferred();
  const std::string waited = absl::FormatDuration(options_.join_timeout);
  if (static_cast<int>(ids.size()) >= options_.nodes_min) {
    End(kExitUsage, Choose(ids).note);
    return;
  }
  End(kExitTemporary,
      absl::StrFormat(
          "%d of at least %d nodes are there after %s; start `dtrain launch` on more, or "
          "wait longer with --rdzv-conf join_timeout=SECONDS",
          members_.size(), options_.nodes_min, waited));
}

// Nodes that came after the start, or came back, are taken in once they have been there for a
// while.
void ElasticJob::TryGrow(int64_t now) {
  const bool has_spare = members_.size() > attempt_.world.size();
  const bool is_full = static_cast<int>(attempt_.world.size()) >= options_.nodes_max;
  const bool is_ending = attempt_.reports_until != kNever;
  if (!has_spare || is_full || is_ending || now < grow_at_ || adoption_.until != kNever) {
    return;
  }
  const WorldChoice choice = Choose(Preferred());
  if (choice.nodes > static_cast<int>(attempt_.world.size())) {
    attempt_.is_planned = true;
    EndAttempt(
        /*save=*/true,
        absl::StrFormat("the job grows from %d to %d nodes", attempt_.world.size(), choice.nodes),
        now);
  } else {  // The batch does not divide. The loss of a spare may change that.
    grow_at_ = Later(now, kGrowAgain);
  }
}

// Tells the nodes of the attempt to end it. An order to end at once is the last one.
void ElasticJob::EndAttempt(bool save, const std::string& why, int64_t now) {
  if (attempt_.ends_at_once) {
    return;
  }
  phase_ = Phase::kEnding;
  attempt_.ends_at_once = !save;
  why_ = why;
  attempt_.reports_until =
      Later(now, options_.reports + (save ? options_.stop_grace : absl::ZeroDuration()));
  actions_.push_back({.kind = ElasticAction::Kind::kStop,
                      .attempt = attempt_.number,
                      .save = save,
                      .job_goes_on = save && attempt_.is_planned && stop_signal_ == 0,
                      .why = why});
}

// The nodes that have not reported in time are told to end at once, and given up after that.
void ElasticJob::LoseSilent(int64_t now) {
  if (!attempt_.ends_at_once) {
    EndAttempt(/*save=*/false, "some nodes have not ended their ranks in time", now);
    return;
  }
  std::vector<int> silent;  // Losing the last of them may begin an attempt, whose nodes are others.
  for (const int id : attempt_.world) {
    const auto member = members_.find(id);
    if (member != members_.end() && !member->second.report.has_value()) {
      silent.push_back(id);
    }
  }
  for (const int id : silent) {
    if (phase_ != Phase::kEnded && members_.count(id) > 0) {
      actions_.push_back({.kind = ElasticAction::Kind::kDismiss,
                          .nodes = {id},
                          .code = kExitTemporary,
                          .why = "its ranks have not ended in time"});
      Lose(id, "its ranks have not ended in time", now);
    }
  }
}

void ElasticJob::CheckOver(int64_t now) {
  const std::vector<int> ids = world();
  for (const int id : ids) {
    const auto member = members_.find(id);
    if (member != members_.end() && !member->second.report.has_value()) {
      return;
    }
  }
  if (!ids.empty() && (now >= attempt_.settled_at || !MayBeLoss())) {
    Conclude(now);
  }
}

void ElasticJob::WaitUntil(int64_t start, const std::string& why) {
  phase_ = Phase::kWaiting;
  start_at_ = start;
  why_ = why;
  gather_until_ = Later(start, options_.join_timeout);
}

void ElasticJob::DismissLeavers() {
  const std::set<int> ids = WorldSet();
  for (auto member = members_.begin(); member != members_.end();) {
    if (member->second.leaving && ids.count(member->first) == 0) {
      actions_.push_back({.kind = ElasticAction::Kind::kDismiss,
                          .nodes = {member->first},
                          .code = member->second.leave_code,
                          .why = absl::StrCat(member->second.node.Name(), " has left the job")});
      member = members_.erase(member);
    } else {
      ++member;
    }
  }
}

void ElasticJob::End(int code, const std::string& why) {
  if (phase_ != Phase::kEnded) {
    phase_ = Phase::kEnded;
    end_ = {.kind = ElasticAction::Kind::kEnd, .code = code, .why = why};
    actions_.push_back(end_);
  }
}

}  // namespace dtrain::launcher
