#include "runtime/job/heartbeat.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "comm/flight_recorder.h"

namespace dtrain {
namespace {

constexpr size_t kUnsentMax = 8;

StepTimes TimesOf(const StepReport& report) {
  return {.step = report.step,
          .whole_s = report.seconds,
          .data_s = report.data_s,
          .forward_s = report.forward_s,
          .backward_s = report.backward_s,
          .update_s = report.update_s};
}

}  // namespace

Heartbeat::Heartbeat(AgentChannel& agent, int rank) : agent_(agent) {
  last_.kind = AgentMessage::Kind::kBeat;
  last_.rank = rank;
  last_.pid = getpid();
  last_.phase = "start";
}

void Heartbeat::Start(const HangLimits& limits) {
  if (!agent_.connected()) {
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    last_.limits = limits;
  }
  watch_ = comm::StartWatch([this](int64_t) { SendRegular(); }, nullptr, agent_.poll_fd());
}

AgentMessage Heartbeat::Beat() {
  const std::lock_guard lock(mutex_);
  return last_;
}

void Heartbeat::SendRegular() {
  if (const std::optional<std::string> why = agent_.TakeFailure(); why.has_value()) {
    comm::AbandonGroups(*why);  // A peer on a host that fell silent would be awaited for long.
  }
  std::vector<GroupProgress> groups = comm::ProgressOfGroups();
  {
    const std::lock_guard lock(mutex_);
    for (const GroupProgress& group : groups) {
      last_.collective = std::max(last_.collective, group.entered);
    }
  }
  AgentMessage message = Beat();
  message.groups = std::move(groups);
  agent_.Send(message);
}

AgentMessage Heartbeat::Begin(const std::string& phase, int64_t step) {
  const std::lock_guard lock(mutex_);
  if (step != last_.step) {
    told_.clear();
  }
  if (std::find(told_.begin(), told_.end(), phase) == told_.end()) {
    told_.push_back(phase);
  }
  told_nanos_ = Clock::Real().MonotonicNanos();
  last_.phase = phase;
  last_.step = step;
  ++last_.marks;
  return last_;
}

// Whether the phase need not be told. The regular beats then have its name, and no new mark: it
// begins so soon after the last one that the agent may count both as one.
bool Heartbeat::IsRepeatedSoon(const std::string& phase, int64_t step) {
  const std::lock_guard lock(mutex_);
  const bool is_repeated =
      step == last_.step && std::find(told_.begin(), told_.end(), phase) != told_.end() &&
      Clock::Real().MonotonicNanos() - told_nanos_ < absl::ToInt64Nanoseconds(kMarksApart);
  if (is_repeated) {
    last_.phase = phase;
  }
  return is_repeated;
}

void Heartbeat::Mark(const char* phase, int64_t step) {
  if (agent_.connected() && !IsRepeatedSoon(phase, step)) {
    agent_.Send(Begin(phase, step));
  }
}

std::string Heartbeat::Interrupt(const char* phase) {
  const std::lock_guard lock(mutex_);
  return std::exchange(last_.phase, phase);
}

void Heartbeat::Resume(const std::string& phase, int64_t since_nanos) {
  const bool was_long =
      Clock::Real().MonotonicNanos() - since_nanos >= absl::ToInt64Nanoseconds(kMarksApart);
  if (was_long && agent_.connected()) {
    agent_.Send(Begin(phase, Beat().step));
    return;
  }
  const std::lock_guard lock(mutex_);
  last_.phase = phase;
}

void Heartbeat::GetsOn() {
  const std::lock_guard lock(mutex_);
  ++last_.marks;
}

void Heartbeat::EndStep(const StepReport& report) {
  if (!agent_.connected()) {
    return;
  }
  AgentMessage message = Begin("program", report.step);
  unsent_.push_back(report);
  if (unsent_.size() > kUnsentMax) {
    unsent_.pop_front();
  }
  // On the host the times of this step are there, and one message says all.
  bool is_sent = false;
  while (!unsent_.empty() && unsent_.front().settled()) {
    message.times = TimesOf(unsent_.front().Settled());
    agent_.Send(message);
    is_sent = true;
    unsent_.pop_front();
  }
  if (!is_sent) {
    agent_.Send(message);
  }
}

}  // namespace dtrain
