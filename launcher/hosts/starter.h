// `dtrain launch --hostfile`: starts the agents of all hosts with one command, and ends with the
// job's exit code.
//
// One ssh process for each host, at most 64 of them connecting at a time. With more hosts, those
// that are started from here start the others (host_routes.h), and the starter sees all of them as
// if it had. Each agent answers with the version of its dtrain and what it has for the program;
// when all have, node 0's opens the coordinator on a free port, and the others are told where.
// After that the agents need the starter only for stop signals and to show output. If it dies, they
// stop their ranks.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/job_env.h"
#include "comm/net/job_key.h"
#include "launcher/hosts/host_answers.h"
#include "launcher/hosts/host_link.h"
#include "launcher/hosts/host_plan.h"
#include "launcher/hosts/host_routes.h"
#include "launcher/hosts/starter_console.h"
#include "launcher/options.h"
#include "launcher/ranks/signals.h"

namespace dtrain::launcher {

// The work of one job. Used by the main thread.
class Starter {
 public:
  Starter(const LaunchOptions& options, std::vector<HostPlan> plans, const comm::JobKey& key,
          SignalSource& signals);

  // The job's exit code, or why nothing was started.
  absl::StatusOr<int> Run();

 private:
  using State = HostLink::State;
  // The return of a host to a job that goes on without it.
  struct Comeback {
    std::optional<Deadline> retry;  // When it is tried again.
    std::optional<Deadline> calm;   // An agent that ends before has ended soon.
    int short_ends = 0;             // How often it has done so by itself, in a row.
  };

  void Step();
  absl::Status StartMore();
  absl::Status StartHost(HostLink& link, int way);
  void Wait();
  void TakeSignals();
  void TakeEnds();
  void OnEnd(size_t node);
  void HangUpAll();
  void SayWhoIsMissing();
  bool AllHaveAnswered() const;
  std::vector<HostAnswer> Answers() const;
  absl::Status MeetFirst();
  void LeaveOutSilent(std::vector<HostAnswer>& answers);
  void MeetOthers();
  void MeetNode(size_t node);
  void EndOthersSoon();
  void OnEndOfElastic(size_t node);
  void TakeBack();
  void TryAgain(size_t node);
  void LetIn(size_t node);
  void StopLate();
  void EndAll();
  int Count(State state) const;
  bool NoneRuns() const {
    return Count(State::kEnded) + Count(State::kWaiting) == static_cast<int>(links_.size());
  }
  static bool Passed(const std::optional<Deadline>& deadline) {
    return deadline.has_value() && deadline->Expired();
  }
  void Say(const std::string& text) {
    console_.err.Add(absl::StrCat("dtrain launch: ", text, "\n"));
  }

  const LaunchOptions& options_;
  const std::string token_;
  SignalSource& signals_;
  const bool is_elastic_;
  HostRoutes routes_;            // Before links_, whose processes it may run.
  std::vector<HostLink> links_;  // By node rank, as the two below.
  std::vector<HostEnd> ends_;
  std::vector<Comeback> comebacks_;
  StarterConsole console_;
  int received_ = 0;  // Stop signals.
  int first_signal_ = 0;
  int ended_ = 0;            // Number of hosts that have ended.
  bool begun_ = false;       // All hosts can start, and node 0 was told to.
  bool others_met_ = false;  // The others were told too.
  bool stopped_late_ = false;
  bool hung_up_ = false;
  Deadline next_notice_;
  std::optional<Deadline> others_end_;  // Set by the first failure.
  std::optional<Deadline> give_up_;     // Set by the second signal.
};

// Blocks until the job has ended on all hosts. Returns its exit code. REQUIRES: the main thread, no
// other thread; a hostfile in `options`.
int StartOnHosts(const LaunchOptions& options, const Environment& environment);

}  // namespace dtrain::launcher
