// Nodes whose own hosts fail, such as one with a full disk: they get no ranks for a while, and the
// rest of the job goes on. Each would otherwise end an attempt of all again and again, because the
// job grows with it as soon as it can.
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "launcher/nodes/elastic_job.h"

namespace dtrain::launcher {
namespace {

constexpr char kCannotStart[] = "it cannot start its ranks";

}  // namespace

// The others wait for the ranks of a node that cannot start any, so they end the attempt at once
// where the job can do without it. It cannot without node 0.
void ElasticJob::NoteUnable(int id, int64_t now) {
  const Member& member = members_.at(id);
  std::set<int> unable = attempt_.unable;
  unable.insert(id);
  if (!member.report->cannot_start || member.node.number == 0 ||
      Choose(Preferred(unable)).nodes == 0) {
    return;
  }
  attempt_.unable = std::move(unable);
  EndAttempt(
      /*save=*/false,
      absl::StrCat(member.node.Name(), " cannot start its ranks: ", Shortened(member.report->why)),
      now);
}

// The place of the node on whose host the trouble is that `cause` tells of; behind all places: it
// is not known.
size_t ElasticJob::PlaceOfTrouble(const RankEnd& cause) const {
  int rank = RankInTrouble(cause.error, cause.rank);
  if (rank == cause.rank) {
    return static_cast<size_t>(cause.node);
  }
  for (size_t place = 0; place < attempt_.world.size(); ++place) {
    const auto member = members_.find(attempt_.world[place]);
    if (member == members_.end()) {  // How many ranks it had is forgotten.
      break;
    }
    if (rank < member->second.node.ranks) {
      return place;
    }
    rank -= member->second.node.ranks;
  }
  return attempt_.world.size();
}

// The nodes on which the attempt has failed by their own hosts, and the errors. What node 0 lacks
// too is nothing of another host's own, but of a disk that all have.
std::map<int, std::string> ElasticJob::FailedHosts() const {
  std::map<int, std::string> failed;
  for (const int id : attempt_.unable) {
    if (const auto member = members_.find(id); member != members_.end()) {
      failed.emplace(id, member->second.report->why);
    }
  }
  for (const Member* reporter : Reporters()) {
    const NodeReport& report = *reporter->report;
    if (reporter->node.number == 0 && report.cannot_start) {
      return {};
    }
    if (!report.cause.has_value() || HostTrouble(report.cause->error).empty()) {
      continue;
    }
    const size_t place = PlaceOfTrouble(*report.cause);
    const auto member =
        place < attempt_.world.size() ? members_.find(attempt_.world[place]) : members_.end();
    if (member == members_.end()) {
      continue;
    }
    if (member->second.node.number == 0) {
      return {};
    }
    failed.emplace(member->first, report.cause->error);
  }
  return failed;
}

// Whether the ranks of one host after the other had this trouble, without a new durable step
// between. It is none of those hosts then, as with data that nobody may read, or a full disk that
// all share, and the job would lose all its nodes by it.
bool ElasticJob::GoesRound(int number, const std::string& trouble) const {
  const auto others =
      std::count_if(failures_.hosts.begin(), failures_.hosts.end(), [&](const auto& host) {
        return host.first != number && host.second.cause == trouble &&
               host.second.durable_step == failures_.durable_step;
      });
  return others + 1 >= kAttemptsWithoutProgressMax;
}

// Gives whether hosts that failed explain the end of the attempt, and the job goes on without them.
// This uses none of the restarts, as the loss of a node.
bool ElasticJob::SetFailedHostsAside(const std::optional<RankEnd>& cause, int64_t now) {
  const bool is_other = cause.has_value() && attempt_.unable.empty() && !MayBeVictim(*cause) &&
                        HostTrouble(cause->error).empty();
  const std::map<int, std::string> failed = is_other ? std::map<int, std::string>() : FailedHosts();
  std::set<int> ids;
  for (const auto& [id, ignored] : failed) {
    ids.insert(id);
  }
  if (failed.empty() || Choose(Preferred(ids)).nodes == 0) {
    return false;
  }
  const auto& [first, error] = *failed.begin();
  if (attempt_.unable.empty() && GoesRound(members_.at(first).node.number, HostTrouble(error))) {
    return false;
  }
  std::vector<std::string> names;
  for (const auto& [id, text] : failed) {
    names.push_back(members_.at(id).node.Name());
    SetAside(id, text, now);
  }
  WaitUntil(now, absl::StrCat(
                     absl::StrJoin(names, ", "),
                     names.size() == 1 ? " is set aside: " : " are set aside: ", Shortened(error),
                     "; the job goes on without ", names.size() == 1 ? "it" : "them"));
  return true;
}

void ElasticJob::SetAside(int id, const std::string& error, int64_t now) {
  const ElasticNode node = members_.at(id).node;
  const std::string trouble = HostTrouble(error);
  HostFailures& failures = failures_.hosts[node.number];
  failures = WithFailure(failures, trouble.empty() ? kCannotStart : trouble, error);
  failures.host = node.host;
  failures.durable_step = failures_.durable_step;
  const AsidePlan plan = PlanAside(failures);
  aside_[node.number] = {now + absl::ToInt64Nanoseconds(plan.wait), failures.error};
  if (!plan.leaves) {
    return;
  }
  actions_.push_back(
      {.kind = ElasticAction::Kind::kDismiss,
       .nodes = {id},
       .code = kExitStop,
       .why = absl::StrFormat(
           "%s stays out of the job after %d failures without a new durable step on it, the last: "
           "%s; mend that and start `dtrain launch` there again, which --hostfile does by itself",
           node.Name(), failures.times, failures.error)});
  members_.erase(id);
}

// What a former coordinator has set aside stays so. Its clock is not known here, so the time begins
// anew; nodes of the attempt that runs have had theirs.
void ElasticJob::KeepAside(const std::vector<ElasticNode>& world, int64_t now) {
  aside_.clear();
  for (const auto& [number, failures] : failures_.hosts) {
    aside_[number] = {now + absl::ToInt64Nanoseconds(PlanAside(failures).wait), failures.error};
  }
  for (const ElasticNode& node : world) {
    aside_.erase(node.number);
  }
  for (const auto& [id, member] : members_) {
    ForgetOtherHost(member.node);
  }
}

// A node that was started on another host, in the place of one that failed, has not failed.
void ElasticJob::ForgetOtherHost(const ElasticNode& node) {
  const auto failed = failures_.hosts.find(node.number);
  if (failed != failures_.hosts.end() && failed->second.host != node.host) {
    failures_.hosts.erase(failed);
    aside_.erase(node.number);
  }
}

std::string ElasticJob::TextOfAside(const ElasticNode& node, const Aside& aside, int64_t now) {
  const absl::Duration left = absl::Ceil(absl::Nanoseconds(aside.until - now), absl::Seconds(1));
  return absl::StrFormat("%s is set aside for %s: %s", node.Name(), absl::FormatDuration(left),
                         aside.why);
}

// Those whose time is over are spares again, and are told so.
void ElasticJob::EndAsides(int64_t now) {
  bool has_changed = false;
  for (auto aside = aside_.begin(); aside != aside_.end();) {
    if (now < aside->second.until) {
      ++aside;
      continue;
    }
    for (auto& [id, member] : members_) {
      member.is_parked = member.is_parked && member.node.number != aside->first;
    }
    aside = aside_.erase(aside);
    has_changed = true;
  }
  if (has_changed && !world().empty()) {
    ParkSpares(now);
  }
}

// An attempt has made a new durable step, with the hosts of all nodes that had ranks in it.
void ElasticJob::ForgetFailures() {
  for (const int id : attempt_.world) {
    const auto member = members_.find(id);
    if (member != members_.end() && attempt_.unable.count(id) == 0) {
      failures_.hosts.erase(member->second.node.number);
    }
  }
}

}  // namespace dtrain::launcher
