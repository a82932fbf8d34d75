// Weights shared out a second time, inside small groups (ZeRO++'s hpZ, Wang et al. 2023, arXiv
// 2306.10209): a step's first gather of a bucket goes over all ranks, later ones, in backward and
// in further micro-batches, over the small group alone, whose links are fast. Costs 1 / size of the
// weights more memory.
//
// On a GPU that is device memory, the small group has a stream of its own, so that its gathers do
// not queue behind reductions between hosts, and nothing waits: this rank's part is copied on the
// compute stream, which each gather follows. Not thread-safe. All ranks make the same calls in the
// same order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/group.h"
#include "comm/nccl/device_group.h"
#include "runtime/engine/flat_parameters.h"
#include "runtime/plan/shard_plan.h"
#include "runtime/shard/gather_memory.h"

namespace dtrain {

// Who shares out a second time. REQUIRES: the groups outlive what is made of them.
struct SecondaryGroups {
  comm::Group& world;                         // Of the hosts.
  comm::DeviceGroup* device_world = nullptr;  // Of the weights, on a GPU; else null.
  comm::Store* store = nullptr;               // Both were made with it.
  int size = 1;                               // Of the small groups; divides the world's.
  std::string name = "secondary shards";      // Of a GPU's; each of a rank has its own.
};

class SecondaryShards {
 public:
  // Collective: neighbours by rank form the small groups. REQUIRES: `flat` and `shards` outlive
  // this object.
  static absl::StatusOr<std::unique_ptr<SecondaryShards>> Create(const SecondaryGroups& groups,
                                                                 const FlatParameters& flat,
                                                                 const plan::ShardPlan& shards);
  ~SecondaryShards() { Drain(); }

  // The weights changed.
  void Invalidate();
  // The training step, from 1, that failure reports of the small group name from now on. Any
  // thread.
  void SetStep(int64_t step) { group_->SetStep(step); }
  bool has(int bucket) const { return has_[static_cast<size_t>(bucket)] != 0; }
  // Keeps this rank's part of a whole bucket, as operations from now on find it.
  absl::Status Keep(int bucket, const std::byte* whole);
  // Collective over the small group: makes the bucket whole in `whole`. REQUIRES: has(bucket).
  absl::StatusOr<comm::Work> Gather(int bucket, comm::Buffer whole, const std::string& name);
  // Its group on a GPU; null on the host.
  comm::DeviceGroup* device_group() const { return device_group_; }
  // Until no work that is queued on a GPU uses its memory or where it gathered to.
  void Drain();
  // Any thread.
  void Abort(const std::string& reason) { group_->Abort(reason); }
  size_t bytes() const { return bytes_; }

 private:
  SecondaryShards(const FlatParameters& flat, const plan::ShardPlan& shards)
      : device_(flat.device()),
        dtype_(flat.dtype()),
        shards_(shards),
        has_(shards.buckets().size(), 0) {}
  absl::Status MakeOnHost(const SecondaryGroups& groups);
  absl::Status MakeOnDevice(const SecondaryGroups& groups);
  comm::Buffer PartOf(int bucket) const;  // In memory_.

  const Device& device_;
  const DType dtype_;
  const plan::ShardPlan& shards_;
  std::unique_ptr<comm::Group> group_;
  comm::DeviceGroup* device_group_ = nullptr;  // group_, on a GPU.
  size_t bytes_ = 0;
  ShardMemory memory_;
  std::unique_ptr<comm::Registration> registration_;
  std::vector<uint8_t> has_;
};

}  // namespace dtrain
