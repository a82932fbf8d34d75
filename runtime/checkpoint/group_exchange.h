// checkpoint::Exchange on a group: gathers reports, broadcasts the manifest.
#pragma once

#include "checkpoint/exchange.h"
#include "comm/group.h"

namespace dtrain {

// Collective like the group it uses; for the thread that drives the group. REQUIRES: the group
// outlives it.
class GroupExchange final : public checkpoint::Exchange {
 public:
  explicit GroupExchange(comm::Group& group) : group_(group) {}
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
};

}  // namespace dtrain
