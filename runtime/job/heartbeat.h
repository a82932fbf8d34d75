// A rank's reports to its agent on its progress: at each phase at once, and several times a second
// how far it is in collectives. Thread-safe; never blocks a step.
//
// Phases that come again in the same step, because it has many micro-batches, are told at most once
// in kMarksApart: each message takes time of the training thread, and of the core on which the
// agent wakes for it.
//
// The regular beats come from comm's watchdog thread, so they go on while the training thread hangs
// and stop when the whole process does. The agent finds hangs by what the beats hold
// (launcher/watch/).
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/agent_channel.h"
#include "base/clock.h"
#include "comm/watchdog.h"
#include "dtrain/metrics.h"

namespace dtrain {

inline constexpr absl::Duration kMarksApart = absl::Milliseconds(20);

class Heartbeat {
 public:
  // REQUIRES: `agent` outlives this object.
  Heartbeat(AgentChannel& agent, int rank);

  // Starts the regular beats. `limits` go with each, because any message may be dropped.
  void Start(const HangLimits& limits);
  // The rank begins `phase`, after `step` finished steps. REQUIRES: `phase` is a literal.
  void Mark(const char* phase, int64_t step);
  // The rank is in `phase` until it resumes the one that this gives. The regular beats say so: most
  // such phases are over before a message of their own would be read.
  std::string Interrupt(const char* phase);
  // The end of Interrupt, which was called at `since_nanos`; a mark if that is long ago.
  void Resume(const std::string& phase, int64_t since_nanos);
  // The phase gets on, which nothing else shows. The regular beats say so.
  void GetsOn();
  // A step is finished; its times are sent when they are there, which on a GPU is later.
  void EndStep(const StepReport& report);

 private:
  AgentMessage Beat();
  AgentMessage Begin(const std::string& phase, int64_t step);
  bool IsRepeatedSoon(const std::string& phase, int64_t step);
  void SendRegular();

  AgentChannel& agent_;
  std::mutex mutex_;
  AgentMessage last_;                   // Guarded by mutex_, as what follows.
  std::vector<std::string> told_;       // The phases of this step that were sent.
  int64_t told_nanos_ = 0;              // When the last one was.
  std::deque<StepReport> unsent_;       // Used by the training thread alone.
  std::unique_ptr<comm::Watch> watch_;  // Last: its inspection uses the members above.
};

// A phase that lasts as long as this object, inside another one. `heartbeat` may be null.
class InnerPhase {
 public:
  InnerPhase(Heartbeat* heartbeat, const char* phase)
      : heartbeat_(heartbeat),
        since_nanos_(Clock::Real().MonotonicNanos()),
        outer_(heartbeat == nullptr ? "" : heartbeat->Interrupt(phase)) {}
  InnerPhase(const InnerPhase&) = delete;
  InnerPhase& operator=(const InnerPhase&) = delete;
  ~InnerPhase() {
    if (heartbeat_ != nullptr) {
      heartbeat_->Resume(outer_, since_nanos_);
    }
  }

 private:
  Heartbeat* const heartbeat_;
  const int64_t since_nanos_;
  const std::string outer_;
};

}  // namespace dtrain
