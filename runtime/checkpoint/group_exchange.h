// checkpoint::Exchange on a group: gathers reports, broadcasts the manifest.
#pragma once

#include "checkpoint/exchange.h"
#include "comm/group.h"
#include "runtime/job/heartbeat.h"

namespace dtrain {

// Collective like the group it uses; for the thread that drives the group. REQUIRES: the group and
// the heartbeat outlive it.
class GroupExchange final : public checkpoint::Exchange {
 public:
  // `heartbeat`, which may be null, tells the agent that the work of a rank that is alone gets on:
  // the agent sees it of others by their calls, and those of a group of one are none.
  explicit GroupExchange(comm::Group& group, Heartbeat* heartbeat = nullptr)
      : group_(group), heartbeat_(group.size() == 1 ? heartbeat : nullptr) {}
  int rank() const override { return group_.rank(); }
  int world_size() const override { return group_.size(); }
  absl::StatusOr<std::vector<std::string>> Gather(absl::string_view mine,
                                                  Deadline deadline) override;
  absl::StatusOr<std::string> Broadcast(absl::string_view text, Deadline deadline) override;
  // While this rank works, a thread tells the others in small calls of the group that it gets on,
  // by which the node's agent too sees that nobody hangs. REQUIRES: `work` does not use the group.
  absl::Status Together(absl::FunctionRef<absl::Status()> work, absl::Duration timeout) override;

 private:
  comm::Group& group_;
  Heartbeat* const heartbeat_;  // Null where there are other ranks.
};

}  // namespace dtrain
