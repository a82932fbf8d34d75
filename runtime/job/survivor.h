// The process of a rank whose job has ended for no fault of its own goes on: it tells its agent
// that it stays, waits for the next attempt, and takes over what a new process would have got. So
// does one that its agent has started in reserve, before its first job.
//
// Used by the main thread alone, between jobs.
#pragma once

#include "absl/status/status.h"
#include "base/agent_channel.h"
#include "base/deadline.h"
#include "base/job_env.h"
#include "base/unique_fd.h"

namespace dtrain {

class Survivor {
 public:
  // Tells the agent that this process can stay. Where there is no agent that reuses processes, it
  // cannot.
  explicit Survivor(const Environment& environment);

  bool can_stay() const { return agent_.connected(); }
  // Whether this process is to wait for its first attempt.
  bool is_reserve() const { return is_reserve_; }
  // Blocks until the agent has given the first attempt, as AwaitNextAttempt does.
  absl::Status AwaitFirstAttempt();
  // Says that the attempt ended here with `exit_code`, and blocks until the agent has given the
  // next one, whose environment and outputs this process has from then on. An error: it has to end;
  // Cancelled: because the agent says so.
  // REQUIRES: can_stay(), and nothing of the ended job is left.
  absl::Status AwaitNextAttempt(int exit_code);

 private:
  absl::Status AwaitOrder(Deadline deadline);
  absl::Status OfferToken() const;

  bool is_reserve_ = false;

  AgentChannel agent_;
  UniqueFd token_;  // A job reads the token once and closes its descriptor; this one stays.
};

}  // namespace dtrain
