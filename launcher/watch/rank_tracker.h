// Follows the beats of one node's ranks: when each last showed progress, and how long its steps
// take. A state machine with time as an argument; not thread-safe.
//
// Progress is a new phase, or another collective entered or left. Time in which a rank could not
// run although it wanted to is not counted against it: it waited for a CPU, or the whole machine,
// and with it the agent, stood still.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "base/agent_channel.h"
#include "launcher/watch/rank_view.h"

namespace dtrain::launcher {

// The state of a rank's process, as the system has it.
struct ProcessSample {
  bool is_stopped = false;
  bool waits_for_disk = false;
  bool is_debugged = false;
  std::map<int, uint64_t> cpu_wait_nanos;  // By thread: time spent ready to run, without a CPU.
};

class RankTracker {
 public:
  RankTracker(int node, std::string host) : node_(node), host_(std::move(host)) {}

  void Take(const AgentMessage& message, int64_t now_nanos);
  void Observe(int rank, const ProcessSample& sample);
  // The agent did not look for that long beyond what it had planned.
  void AgentSlept(double seconds);
  void Ended(int rank);

  // The ranks that have sent a beat.
  std::vector<RankView> Views(int64_t now_nanos) const;
  // Ranks that have shown no progress for a quarter of their limit: Observe should be called for
  // them. By pid.
  std::map<int, int> Suspects(int64_t now_nanos) const;
  StepStatistics Steps() const;

 private:
  struct Track {
    RankView view;
    uint64_t marks = 0;
    int64_t progress_nanos = 0;
    int64_t heard_nanos = 0;
    double excused_s = 0;  // Since the last progress.
    std::map<int, uint64_t> cpu_wait_nanos;
    int64_t steps = 0;
  };
  void Progress(Track& track, int64_t now_nanos);
  void TakeTimes(Track& track, const StepTimes& times);

  const int node_;
  const std::string host_;
  std::map<int, Track> tracks_;
  std::deque<double> step_seconds_;  // The last ones of all ranks.
  double pause_s_ = 0;               // StepStatistics::pause_s.
};

}  // namespace dtrain::launcher
