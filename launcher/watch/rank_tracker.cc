#include "launcher/watch/rank_tracker.h"

#include <algorithm>
#include <utility>

#include "launcher/watch/hang.h"

namespace dtrain::launcher {
namespace {

constexpr size_t kStepsKept = 2000;
constexpr int64_t kWarmUpSteps = 3;  // They touch memory and set up libraries.
constexpr double kSuspectShare = 0.25;

bool HasMoved(const std::vector<GroupProgress>& before, const std::vector<GroupProgress>& now) {
  return !std::equal(before.begin(), before.end(), now.begin(), now.end(),
                     [](const GroupProgress& a, const GroupProgress& b) {
                       return a.group == b.group && a.entered == b.entered && a.left == b.left;
                     });
}

}  // namespace

void RankTracker::Progress(Track& track, int64_t now_nanos) {
  // Where data have a limit of their own, their pauses say nothing of the other phases.
  const bool is_apart = track.view.phase == "data" && track.view.limits.data_s > 0;
  if (track.steps >= kStepsBeforeLearning && IsStepPhase(track.view.phase) && !is_apart) {
    const double pause = static_cast<double>(now_nanos - track.progress_nanos) * 1e-9;
    pause_s_ = std::max(pause_s_, pause - track.excused_s);
  }
  track.progress_nanos = now_nanos;
  track.excused_s = 0;
  track.cpu_wait_nanos.clear();
  track.view.is_stopped = false;
  track.view.waits_for_disk = false;
  track.view.is_debugged = false;
}

void RankTracker::TakeTimes(Track& track, const StepTimes& times) {
  if (times.step < 0 || times.whole_s <= 0 || ++track.steps <= kWarmUpSteps) {
    return;
  }
  step_seconds_.push_back(times.whole_s);
  if (step_seconds_.size() > kStepsKept) {
    step_seconds_.pop_front();
  }
}

void RankTracker::Take(const AgentMessage& message, int64_t now_nanos) {
  using Kind = AgentMessage::Kind;
  if (message.kind == Kind::kDone || message.kind == Kind::kError) {
    Ended(message.rank);
    return;
  }
  if (message.kind != Kind::kBeat) {
    return;
  }
  const auto [found, is_new] = tracks_.try_emplace(message.rank);
  Track& track = found->second;
  RankView& view = track.view;
  track.heard_nanos = now_nanos;
  // A beat that only says a phase has no groups.
  const bool has_groups = !message.groups.empty();
  const bool moved = has_groups && HasMoved(view.groups, message.groups);
  if (is_new || message.marks != track.marks || moved) {
    Progress(track, now_nanos);
  }
  track.marks = message.marks;
  view.rank = message.rank;
  view.node = node_;
  view.host = host_;
  view.pid = message.pid;
  view.step = message.step;
  view.phase = message.phase;
  if (has_groups) {
    view.groups = message.groups;
  }
  if (message.limits.slow_s > 0) {
    view.limits = message.limits;
  }
  TakeTimes(track, message.times);
}

void RankTracker::Observe(int rank, const ProcessSample& sample) {
  const auto found = tracks_.find(rank);
  if (found == tracks_.end()) {
    return;
  }
  Track& track = found->second;
  track.view.is_stopped = sample.is_stopped;
  // Until the next progress: a sample is a moment, and what it shows may explain the whole pause.
  track.view.waits_for_disk = track.view.waits_for_disk || sample.waits_for_disk;
  track.view.is_debugged = track.view.is_debugged || sample.is_debugged;
  uint64_t most = 0;  // Which thread is at work is not known from outside.
  for (const auto& [thread, nanos] : sample.cpu_wait_nanos) {
    const auto before = track.cpu_wait_nanos.find(thread);
    if (before != track.cpu_wait_nanos.end() && nanos > before->second) {
      most = std::max(most, nanos - before->second);
    }
  }
  track.excused_s += static_cast<double>(most) * 1e-9;
  track.cpu_wait_nanos = sample.cpu_wait_nanos;
}

void RankTracker::AgentSlept(double seconds) {
  for (auto& [rank, track] : tracks_) {
    track.excused_s += seconds;
  }
}

void RankTracker::Ended(int rank) {
  const auto found = tracks_.find(rank);
  if (found != tracks_.end()) {
    found->second.view.has_ended = true;
  }
}

std::vector<RankView> RankTracker::Views(int64_t now_nanos) const {
  std::vector<RankView> views;
  for (const auto& [rank, track] : tracks_) {
    RankView view = track.view;
    const auto since = [&](int64_t then) {
      return std::max(0.0, static_cast<double>(now_nanos - then) * 1e-9 - track.excused_s);
    };
    view.still_s = since(track.progress_nanos);
    view.silent_s = since(track.heard_nanos);
    views.push_back(std::move(view));
  }
  return views;
}

std::map<int, int> RankTracker::Suspects(int64_t now_nanos) const {
  const StepStatistics steps = Steps();
  std::map<int, int> suspects;
  for (const RankView& view : Views(now_nanos)) {
    // Not HangLimit alone: a stopped process has a shorter limit, and only a look tells.
    const bool is_due = view.still_s > kSuspectShare * HangLimit(view, steps, true) ||
                        view.still_s > kHangFloorSeconds / 2;
    if (!view.has_ended && view.limits.slow_s > 0 && is_due) {
      suspects[view.pid] = view.rank;
    }
  }
  return suspects;
}

StepStatistics RankTracker::Steps() const {
  StepStatistics steps;
  if (tracks_.empty() || step_seconds_.empty()) {
    return steps;
  }
  steps.steps = tracks_.begin()->second.steps;
  for (const auto& [rank, track] : tracks_) {
    steps.steps = std::min(steps.steps, track.steps);
  }
  std::vector<double> sorted(step_seconds_.begin(), step_seconds_.end());
  const auto at = static_cast<std::ptrdiff_t>(sorted.size() * 99 / 100);
  std::nth_element(sorted.begin(), sorted.begin() + at, sorted.end());
  steps.p99_s = sorted[static_cast<size_t>(at)];
  steps.pause_s = pause_s_;
  return steps;
}

}  // namespace dtrain::launcher
