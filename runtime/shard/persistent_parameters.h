// Small parameters that stay whole on every rank at ZeRO stage 3 (plan/layout/persistent_plan.h):
// they live in a memory of their own, which no gather touches, and are brought up to date by one
// all-gather after each update. On a GPU that is queued, and nothing waits. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "comm/group.h"
#include "comm/nccl/device_group.h"
#include "runtime/model/flat_parameters.h"
#include "runtime/plan/layout/persistent_plan.h"

namespace dtrain {

class PersistentParameters {
 public:
  // This rank's values: [shard elements] of the flat values' type. `pinned`: in page-locked memory
  // of a GPU's host, which the compute stream may write.
  struct Shard {
    at::Tensor values;
    bool pinned = false;
  };
  // Moves them there; their values come with the first Refresh. `device_group`: on a GPU, else
  // null. REQUIRES: the groups and the device of `flat` outlive this object.
  static absl::StatusOr<std::unique_ptr<PersistentParameters>> Create(
      comm::Group& group, comm::DeviceGroup* device_group, FlatParameters& flat, Shard shard,
      plan::PersistentPlan plan);

  // Collective: takes every rank's share of them.
  absl::Status Refresh();
  bool has(size_t entry) const { return has_[entry] != 0; }
  // Held for good. On the host Refresh takes up to as much again while it runs.
  int64_t bytes() const;

 private:
  // On a GPU: what of the shard this rank sends, and where in what all sent each value is.
  struct Exchange {
    std::shared_ptr<DeviceMemory> memory;  // Holds both; the group's stream reads and writes it.
    at::Tensor sent;                       // [rank_elements_max]
    at::Tensor received;                   // [ranks x rank_elements_max]
    at::Tensor index_of_sent;              // [as sent] int64: which of the shard; where that is.
    at::Tensor index_of_values;            // [plan_.elements] int64: which elements of `received`.
  };

  PersistentParameters(comm::Group& group, comm::DeviceGroup* device_group, FlatParameters& flat,
                       Shard shard, plan::PersistentPlan plan);
  absl::Status MakeExchange();
  absl::Status QueueSent();
  absl::Status RefreshOnDevice();
  comm::Group& group_;
  comm::DeviceGroup* const device_group_;
  const Device& device_;
  const DType dtype_;
  const plan::PersistentPlan plan_;
  const at::Tensor shard_;
  const bool pinned_;
  std::vector<uint8_t> has_;  // By entry.
  at::Tensor values_;         // [plan_.elements] of the flat values' type.
  Exchange exchange_;
};

}  // namespace dtrain
