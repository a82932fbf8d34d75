// Decides by what the agents of all hosts have said: whether the job may start, where the nodes
// meet, and which exit code it has. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "launcher/hosts/node_messages.h"

namespace dtrain::launcher {

// A host's answer before ranks start.
struct HostAnswer {
  std::string host;
  bool is_local = false;  // Started without ssh.
  std::string silence;    // Why its agent did not answer; "": it did.
  HelloMessage hello;
  std::string ssh_from;  // The other host whose ssh was to reach it; "": this one's.
};

// Why the host is silent, and whose ssh has not reached it if that was not this host's.
std::string WhySilent(const HostAnswer& answer);

// What to add to a message if some hosts were not reached by the ssh of others: the flag that needs
// none. "": all were tried from here.
std::string FanoutHint(const std::vector<HostAnswer>& answers);

// OK if all hosts can start the same program with the dtrain that has `own_version`. Otherwise one
// message lists every host that cannot, and why. Unavailable: some cannot be reached;
// FailedPrecondition: all others. For hosts that could not be reached from other hosts it says how
// to reach all from this one.
absl::Status CheckAnswers(const std::vector<HostAnswer>& answers, const std::string& own_version);

// The address of node 0, the first host, by which the others reach it: the one by which ssh reached
// it, or, if it is this host, the one from which its ssh reached the first other host.
// FailedPrecondition: it is known only by a loopback address.
absl::StatusOr<std::string> MeetingAddress(const std::vector<HostAnswer>& answers);

// How the agent of a host ended.
struct HostEnd {
  int code = 0;
  bool lost = false;     // Its connection ended without an exit code.
  bool stopped = false;  // It was stopped because another host had failed.
  int order = 0;         // Order of the ends.
};

// The job's exit code from the ends by node rank: node 0's, which knows the root cause. If node 0
// was stopped because of another host, or reports a stop that comes from a lost host, it is the
// code of the first host that failed, and 75 if that was lost. `signalled`: the user asked for a
// stop.
int CodeOfJob(const std::vector<HostEnd>& ends, bool signalled);

// A lost host of an elastic job is tried again after this.
inline constexpr absl::Duration kFirstRetry = absl::Seconds(10);

// After how long a host of an elastic job is started again, which goes on without it; nothing: it
// is done with the job, or would be refused again. `ends` counts how often its agent has ended soon
// and by itself, this end included: the time doubles with each, to ten minutes. It is that at once
// behind the coordinator's word that the host fails again and again.
std::optional<absl::Duration> RetryTime(const HostEnd& end, int ends);

}  // namespace dtrain::launcher
