#include "launcher/watch/hang.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace dtrain::launcher {
namespace {

constexpr size_t kRanksNamed = 8;
constexpr size_t kCutCall = 40;  // A long summary has calls that are cut here (rank_view.cc).

using Views = std::vector<const RankView*>;

// The limit in a phase of a step.
double StrictLimit(const RankView& view, const StepStatistics& steps) {
  if (view.limits.fixed_s > 0) {
    return view.limits.fixed_s;
  }
  if (steps.steps < kStepsBeforeLearning) {
    return std::max(view.limits.slow_s, kHangFloorSeconds);
  }
  const double learnt_min_s = -view.limits.fixed_s;
  return std::max(
      {kHangFloorSeconds, learnt_min_s, kHangFactor * steps.p99_s, kPauseFactor * steps.pause_s});
}

double PatientLimit(const RankView& view, const StepStatistics& steps) {
  return std::max(view.limits.patience_s, StrictLimit(view, steps));
}

bool HasDataLimit(const RankView& view) { return view.phase == "data" && view.limits.data_s > 0; }

// No limit of the rank is shorter.
double LeastLimit(const RankView& view, const StepStatistics& steps) {
  const double strict = StrictLimit(view, steps);
  return HasDataLimit(view) ? std::min(strict, view.limits.data_s) : strict;
}

// A sample of its process has shown that it is stopped, however slow the machine is.
double NamedAfter(const RankView& view, double limit) {
  return view.is_stopped ? kStoppedShare * limit : limit;
}

// The detection is off for a rank, or not on yet.
bool IsUnwatched(const RankView& view) {
  return view.limits.slow_s <= 0 || view.limits.fixed_s == 0;
}

// Whether the process itself stands still, and not only its training thread.
bool IsFrozen(const RankView& view, const StepStatistics& steps) {
  return view.is_stopped || view.silent_s > StrictLimit(view, steps);
}

std::string Named(const Views& views) {
  std::vector<int> ranks;
  for (size_t i = 0; i < views.size() && i < kRanksNamed; ++i) {
    ranks.push_back(views[i]->rank);
  }
  std::sort(ranks.begin(), ranks.end());
  const std::string more =
      views.size() > kRanksNamed ? absl::StrCat(" and ", views.size() - kRanksNamed, " more") : "";
  return absl::StrCat(views.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "), more);
}

// The rank's state by its last report.
std::string Doing(const RankView& view) {
  std::string text = view.phase == "data"      ? "it waits for its data source"
                     : view.phase == "program" ? "it runs the program's own code between steps"
                     : view.phase == "eval"    ? "it evaluates"
                     : view.phase == "save"    ? "it saves"
                     : view.phase == "start"   ? "it starts"
                                               : absl::StrCat("it is in ", view.phase);
  absl::StrAppend(&text, " after step ", view.step);
  if (view.is_stopped) {
    absl::StrAppend(&text, ", and a signal has stopped its process (SIGCONT continues it)");
  } else if (view.waits_for_disk) {
    absl::StrAppend(&text, ", and one of its threads waits for a disk");
  }
  return text;
}

std::string Since(const Hang& hang) {
  return absl::StrFormat("%.1f s without progress, limit %.1f s", hang.still_s, hang.limit_s);
}

std::string CollectiveText(const Hang& hang) {
  return absl::StrFormat("collective %d of group \"%s\"%s", hang.collective, hang.group,
                         hang.call.empty() ? "" : absl::StrCat(" (", hang.call, ")"));
}

// A summary may have cut one of them.
bool SameCall(const std::string& a, const std::string& b) {
  const size_t common = std::min(a.size(), b.size());
  return a == b || (common == kCutCall && a.compare(0, common, b, 0, common) == 0);
}

Hang HangOf(HangKind kind, const Views& ranks, double limit_s) {
  Hang hang;
  hang.kind = kind;
  for (const RankView* view : ranks) {
    hang.ranks.push_back(view->rank);
  }
  hang.still_s = ranks.front()->still_s;
  hang.limit_s = limit_s;
  return hang;
}

void SortByStillness(Views& views) {
  std::stable_sort(views.begin(), views.end(),
                   [](const RankView* a, const RankView* b) { return a->still_s > b->still_s; });
}

// Those who wait in a collective that `rank` has not entered, and that collective.
struct Waiting {
  Views waiting;
  GroupProgress progress;
};
Waiting WaitingFor(const RankView& rank, const Views& views) {
  Waiting result;
  for (const RankView* other : views) {
    const GroupProgress* const inside = other->Inside();
    const GroupProgress* const mine = inside == nullptr ? nullptr : rank.In(inside->group);
    if (mine == nullptr || mine->entered > inside->left || other->rank == rank.rank) {
      continue;
    }
    if (result.waiting.empty()) {
      result.progress = *inside;
    }
    result.waiting.push_back(other);
  }
  return result;
}

// Ranks outside of collectives, and frozen ones anywhere, that are over their limit.
Views OverLimit(const Views& views, const StepStatistics& steps) {
  Views over;
  for (const RankView* view : views) {
    const bool counts = view->Inside() == nullptr || IsFrozen(*view, steps);
    if (!counts || view->still_s <= NamedAfter(*view, LeastLimit(*view, steps))) {
      continue;  // To look for those who wait takes time.
    }
    const bool is_awaited = !WaitingFor(*view, views).waiting.empty();
    if (view->still_s > NamedAfter(*view, HangLimit(*view, steps, is_awaited))) {
      over.push_back(view);
    }
  }
  SortByStillness(over);
  return over;
}

Hang BlameOutside(const Views& over, const Views& views, const StepStatistics& steps) {
  const RankView& first = *over.front();
  const GroupProgress* const inside = first.Inside();
  const Waiting waiting = WaitingFor(first, views);
  const double limit = HangLimit(first, steps, !waiting.waiting.empty());
  if (inside != nullptr) {  // Its process is frozen inside a collective.
    Hang hang = HangOf(HangKind::kNotReturned, over, limit);
    hang.group = inside->group;
    hang.collective = inside->left + 1;
    hang.call = inside->call;
    hang.text = absl::StrFormat(
        "%s has entered %s and does not return: %s; %s", RankName(first), CollectiveText(hang),
        first.is_stopped ? "a signal has stopped its process" : "its process does not run",
        Since(hang));
    return hang;
  }
  if (waiting.waiting.empty()) {
    Hang hang = HangOf(HangKind::kOutside, over, limit);
    hang.text = absl::StrFormat("%s hangs outside of collectives: %s; %s", RankName(first),
                                Doing(first), Since(hang));
    return hang;
  }
  Hang hang = HangOf(HangKind::kNeverEntered, over, limit);
  hang.group = waiting.progress.group;
  hang.collective = waiting.progress.left + 1;
  hang.call = waiting.progress.call;
  hang.text = absl::StrFormat("%s has not entered %s, in which %s wait%s: %s; %s", RankName(first),
                              CollectiveText(hang), Named(waiting.waiting),
                              waiting.waiting.size() == 1 ? "s" : "", Doing(first), Since(hang));
  return hang;
}

// The call in which most of `views` are; the first of those with equally many.
const GroupProgress& MostCommon(const Views& views) {
  std::vector<std::pair<const GroupProgress*, int>> calls;  // A few, with how many are in each.
  for (const RankView* view : views) {
    const GroupProgress* const mine = view->Inside();
    const auto found = std::find_if(calls.begin(), calls.end(), [mine](const auto& call) {
      return call.first->group == mine->group && SameCall(call.first->call, mine->call);
    });
    if (found == calls.end()) {
      calls.emplace_back(mine, 1);
    } else {
      ++found->second;
    }
  }
  const auto best = std::max_element(calls.begin(), calls.end(), [](const auto& a, const auto& b) {
    return a.second < b.second;  // The first of the largest.
  });
  return *best->first;
}

// REQUIRES: all are inside a collective. Those that are in another one than most, by its group, or
// by its signature at the same sequence number.
std::optional<Hang> FindMismatch(const Views& views, const StepStatistics& steps) {
  const GroupProgress& common = MostCommon(views);
  Views others;
  for (const RankView* view : views) {
    const GroupProgress& mine = *view->Inside();
    const bool differs = mine.group != common.group
                             ? view->In(common.group) != nullptr
                             : mine.entered == common.entered && !SameCall(mine.call, common.call);
    if (differs) {
      others.push_back(view);
    }
  }
  if (others.empty()) {
    return std::nullopt;
  }
  SortByStillness(others);
  const RankView& first = *others.front();
  Hang hang = HangOf(HangKind::kMismatch, others, StrictLimit(first, steps));
  hang.group = common.group;
  hang.collective = common.left + 1;
  hang.call = common.call;
  const GroupProgress& mine = *first.Inside();
  hang.text = absl::StrFormat(
      "%s is in another collective than the others: collective %d of group \"%s\" (%s) in place of "
      "%s%s; %s",
      RankName(first), mine.left + 1, mine.group, mine.call, CollectiveText(hang),
      2 * others.size() == views.size() ? ", and as many ranks are in the one as in the other" : "",
      Since(hang));
  return hang;
}

// REQUIRES: all are inside a collective of one group. Those that are behind the others.
std::optional<Hang> FindBehind(const Views& views, const StepStatistics& steps) {
  uint64_t least = views.front()->Inside()->left;
  uint64_t most = least;
  for (const RankView* view : views) {
    least = std::min(least, view->Inside()->left);
    most = std::max(most, view->Inside()->left);
  }
  if (least == most) {
    return std::nullopt;
  }
  Views behind;
  Views ahead;
  for (const RankView* view : views) {
    (view->Inside()->left == least ? behind : ahead).push_back(view);
  }
  SortByStillness(behind);
  const RankView& first = *behind.front();
  Hang hang = HangOf(HangKind::kNotReturned, behind, PatientLimit(first, steps));
  hang.group = first.Inside()->group;
  hang.collective = least + 1;
  hang.call = first.Inside()->call;
  hang.text = absl::StrFormat("%s has entered %s and does not return, while %s ha%s left it; %s",
                              RankName(first), CollectiveText(hang), Named(ahead),
                              ahead.size() == 1 ? "s" : "ve", Since(hang));
  return hang;
}

// All ranks are inside of collectives, and none of their processes is frozen.
std::optional<Hang> BlameInside(Views views, const StepStatistics& steps) {
  SortByStillness(views);
  const RankView& last = *views.back();
  if (last.still_s <= StrictLimit(last, steps)) {
    return std::nullopt;
  }
  if (std::optional<Hang> mismatch = FindMismatch(views, steps); mismatch.has_value()) {
    return mismatch;
  }
  // A call of the program itself, or of a save or an evaluation, may take as long as these.
  const double limit = IsStepPhase(last.phase)
                           ? PatientLimit(last, steps)
                           : std::max(last.limits.slow_s, PatientLimit(last, steps));
  if (last.still_s <= limit) {
    return std::nullopt;
  }
  const std::string& group = views.front()->Inside()->group;
  const bool is_one_group = std::all_of(views.begin(), views.end(), [&](const RankView* view) {
    return view->Inside()->group == group;
  });
  if (is_one_group) {
    if (std::optional<Hang> behind = FindBehind(views, steps); behind.has_value()) {
      return behind;
    }
  }
  Hang hang = HangOf(HangKind::kAllStuck, views, limit);
  hang.group = group;
  hang.collective = views.front()->Inside()->left + 1;
  hang.call = views.front()->Inside()->call;
  hang.text = absl::StrFormat(
      "all %d ranks are stuck in %s: none is missing, so a link or a device does not answer; %s",
      views.size(), CollectiveText(hang), Since(hang));
  return hang;
}

}  // namespace

const char* HangKindName(HangKind kind) {
  switch (kind) {
    case HangKind::kNeverEntered:
      return "never_entered";
    case HangKind::kMismatch:
      return "mismatch";
    case HangKind::kNotReturned:
      return "not_returned";
    case HangKind::kAllStuck:
      return "all_stuck";
    case HangKind::kOutside:
      return "outside";
  }
  return "?";
}

bool IsStepPhase(absl::string_view phase) {
  return phase == "data" || phase == "forward" || phase == "backward" || phase == "update";
}

double HangLimit(const RankView& view, const StepStatistics& steps, bool is_awaited) {
  const double strict = StrictLimit(view, steps);
  const double patient = PatientLimit(view, steps);
  if (IsFrozen(view, steps)) {  // A disk, or memory that was swapped out, may stop a whole process.
    return view.waits_for_disk && !view.is_stopped ? patient : strict;
  }
  if (HasDataLimit(view)) {
    return view.waits_for_disk ? std::max(view.limits.data_s, patient) : view.limits.data_s;
  }
  if (IsStepPhase(view.phase)) {
    return view.waits_for_disk ? patient : strict;
  }
  return view.phase == "program" && is_awaited ? patient : std::max(view.limits.slow_s, patient);
}

std::optional<Hang> FindHang(absl::Span<const RankView> views, int world_size,
                             const StepStatistics& steps) {
  Views known;
  bool someone_has_ended = false;
  for (const RankView& view : views) {
    if (IsUnwatched(view) || view.is_debugged) {
      // It is still starting, the detection is off, or somebody looks at it and the others wait.
      return std::nullopt;
    }
    someone_has_ended = someone_has_ended || view.has_ended;
    if (!view.has_ended) {
      known.push_back(&view);
    }
  }
  if (known.empty()) {
    return std::nullopt;
  }
  if (const Views over = OverLimit(known, steps); !over.empty()) {
    return BlameOutside(over, known, steps);
  }
  // Whoever is missing may be the one for whom the others wait.
  const bool all_are_inside = std::all_of(
      known.begin(), known.end(), [](const RankView* view) { return view->Inside() != nullptr; });
  if (!all_are_inside || someone_has_ended || static_cast<int>(views.size()) < world_size ||
      known.size() < 2) {
    return std::nullopt;
  }
  return BlameInside(known, steps);
}

std::optional<double> UntilNextLimit(absl::Span<const RankView> views,
                                     const StepStatistics& steps) {
  std::optional<double> next;
  const auto note = [&next](double limit, double since) {
    if (limit > since) {
      next = std::min(next.value_or(limit - since), limit - since);
    }
  };
  for (const RankView& view : views) {
    if (IsUnwatched(view) || view.has_ended) {
      continue;
    }
    // Which of them counts may change before the time comes: others begin to wait for the rank, a
    // signal stops it, it waits for a disk.
    const double strict = StrictLimit(view, steps);
    const double patient = PatientLimit(view, steps);
    for (const double limit :
         {kStoppedShare * strict, strict, patient, std::max(view.limits.slow_s, patient)}) {
      note(limit, view.still_s);
    }
    if (HasDataLimit(view)) {
      note(view.limits.data_s, view.still_s);
      note(std::max(view.limits.data_s, patient), view.still_s);
    }
    note(strict, view.silent_s);
  }
  return next;
}

}  // namespace dtrain::launcher
