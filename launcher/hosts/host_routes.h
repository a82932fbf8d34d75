// How the starter reaches each host: by ssh from here, or from a host that starts others for it, as
// host_tree.h has placed them. A host that is to start others and cannot does not hide those behind
// it: they, and it itself, are reached from the next host on the way to here that can.
//
// Used by the main thread; never blocks.
#pragma once

#include <poll.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "launcher/hosts/agent_process.h"
#include "launcher/hosts/host_plan.h"
#include "launcher/hosts/relay_link.h"
#include "launcher/hosts/starter_console.h"

namespace dtrain::launcher {

class HostRoutes {
 public:
  static constexpr int kFromHere = -1;

  // A host that is to start others has `answer_time` to answer.
  HostRoutes(const std::vector<HostPlan>& plans, absl::Duration answer_time);

  // Connects to the hosts that start others, as soon as each can be reached. Unavailable: ssh
  // cannot be run here.
  absl::Status Connect();
  // The node from which the host of `plan` is started now; it may be itself, which needs no more
  // ssh. Nothing: it waits for one on its way.
  std::optional<int> WayTo(const HostPlan& plan) const;
  // Starts the host's agent. REQUIRES: `way` is what WayTo has given since the last Move.
  absl::StatusOr<std::unique_ptr<AgentProcess>> Start(const HostPlan& plan, int way);
  // The host whose ssh reaches the host of `plan` on this way; "": this one.
  std::string SshFrom(const HostPlan& plan, int way) const;

  void Move(StarterConsole& console);
  void AddTo(std::vector<pollfd>& entries, bool may_read) const;
  // Closes the connections to hosts that start others, which end behind all that runs there.
  void HangUp();
  void Kill();
  bool AllEnded() const;

 private:
  // A host that starts others.
  struct Inner {
    HostPlan plan;
    std::string from;                  // The host whose ssh reaches it; "": this one.
    std::unique_ptr<RelayLink> relay;  // Null: not connected yet.
  };

  std::optional<int> WayUp(int node) const;

  absl::Duration answer_time_;
  std::map<int, Inner> inner_;  // By node rank, so that a host stands behind those on its way.
};

}  // namespace dtrain::launcher
