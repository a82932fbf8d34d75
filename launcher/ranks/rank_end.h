// How ranks end, which end is the root cause, and the job's exit code. Pure functions.
//
// The rule in one sentence: the first rank that failed by itself is the cause; a rank that ended
// with 75 (a peer or the network was lost) is suspected to be a victim and gives way to any rank
// with a harder end; a rank that the agent stopped is never the cause.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace dtrain::launcher {

struct RankEnd {
  int rank = 0;
  int node = 0;
  std::string host;
  int pid = 0;           // 0: it was not started.
  int exit_code = 0;     // Meaningful when signal == 0.
  int signal = 0;        // The signal that killed it, or 0.
  bool stopped = false;  // It ended after the agent had told it to stop.
  int64_t order = 0;     // Order in which this node's agent saw ends, from 0.
  int64_t step = -1;     // Last step that it reported; -1: none.
  std::string phase;     // Phase of the step that it last reported.
  std::string error;     // Its own first-hand error, over the agent channel.
  std::string log;       // Path of its stderr log.
  // The kind of its hang (watch/hang.h): it has not ended, and the agent stops it because of
  // `error`. "": it has ended.
  std::string hang;
};

// exit_code, or 128 + signal.
int CodeOf(const RankEnd& end);
// Whether it ended by itself with anything but 0.
bool FailedByItself(const RankEnd& end);
// Whether a lost peer explains the end (75, and no hang): then wait briefly for a harder one.
bool MayBeVictim(const RankEnd& end);

// How the user or the scheduler asked the job to stop.
struct StopRequest {
  int signal = 0;            // First signal received; 0: none was received.
  bool forced = false;       // A second signal, or the grace period passed: ranks were killed.
  bool interrupted = false;  // One of the signals was SIGINT.
  bool here = false;         // One came to this agent itself.
  bool may_force = false;    // The next one that does forces it.
  bool job_goes_on = false;  // All were for a change of the job's nodes.
};

enum class StopEffect {
  kStop,   // The ranks are to save and stop.
  kForce,  // They are to be killed.
  kNone,   // It adds nothing.
};
// Notes a further stop signal. `from_peer`: the agent of another node got it. `job_goes_on`: with
// other nodes, behind the save.
StopEffect NoteStopSignal(int signal, bool from_peer, bool job_goes_on, StopRequest& stop);

// The end that explains the job's failure, or nullptr when no rank failed by itself. After a stop
// request the ends that it explains (0, 130, 143) are no failures.
const RankEnd* RootCause(const std::vector<RankEnd>& ends, const StopRequest& stop = {});
// The rank that left early: it ended with 0 before `cause`, which then lost a peer. Or nullptr.
const RankEnd* EarlyLeaver(const std::vector<RankEnd>& ends, const RankEnd& cause);

// The error of an attempt whose other ranks still run `waited` after one has ended with 0. `alive`:
// those of this node.
absl::Status ExitBarrierError(const std::vector<RankEnd>& ends, const std::vector<int>& alive,
                              absl::Duration waited);

// The job's exit code (docs/FAILURES.md) from all ranks' ends.
int JobExitCode(const std::vector<RankEnd>& ends, const StopRequest& stop);

// "killed by signal 9 (SIGKILL)" or "ended with exit code 64 (wrong usage, configuration or data)".
std::string DescribeEnd(const RankEnd& end);
// One line: "rank 1 killed by signal 9 (SIGKILL), pid 4242 on host n1, after step 120 (backward)".
std::string DescribeFailure(const RankEnd& end);

// The lines of a log without those that hold `error`, a rank's own error, so that it is shown once.
// Line ends inside the error are '?', as Printable makes them.
std::vector<std::string> LinesWithout(const std::vector<std::string>& lines,
                                      const std::string& error);

// "SIGKILL"; "signal 77" for a number without a name.
std::string SignalName(int signal);

// The meaning column of the exit code table; "" for a program's own code.
absl::string_view ExitCodeMeaning(int code);

// The text by which one agent tells the others, through the store, what failed.
std::string EncodeEnd(const RankEnd& end);
absl::StatusOr<RankEnd> DecodeEnd(absl::string_view text);

}  // namespace dtrain::launcher
