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
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/group.h"
#include "comm/nccl/device_group.h"
#include "runtime/model/flat_parameters.h"
#include "runtime/plan/layout/shard_plan.h"
#include "runtime/shard/gather_memory.h"

namespace dtrain {

// The inputs of small groups. REQUIRES: the groups given here outlive the small ones.
struct SmallGroupOptions {
  comm::Group& world;                         // The group of all hosts.
  comm::DeviceGroup* device_world = nullptr;  // The group of weights on a GPU; else null.
  comm::Store* store = nullptr;               // Both were made with it.
  int size = 1;                               // Ranks of a small group; divides the world size.
};

// The small group of this rank: one for all that a rank shares out a second time.
struct SmallGroup {
  std::shared_ptr<comm::Group> group;   // Null: not made.
  comm::DeviceGroup* device = nullptr;  // `group`, on a GPU.
};
// Collective: neighbours by rank form the groups.
absl::StatusOr<SmallGroup> MakeSmallGroup(const SmallGroupOptions& options);

class SecondaryShards {
 public:
  // Collective over the small group. REQUIRES: `flat` and `shards` outlive this object.
  static absl::StatusOr<std::unique_ptr<SecondaryShards>> Create(const SmallGroup& small,
                                                                 const FlatParameters& flat,
                                                                 const plan::ShardPlan& shards);
  ~SecondaryShards() { Drain(); }

  // The weights changed.
  void Invalidate();
  // The training step, from 1, that failure reports of the small group name from now on. Any
  // thread.
  void SetStep(int64_t step) { small_.group->SetStep(step); }
  bool has(int bucket) const { return has_[static_cast<size_t>(bucket)] != 0; }
  // Keeps this rank's part of a whole bucket, as operations from now on find it.
  absl::Status Keep(int bucket, const std::byte* whole);
  // Collective over the small group: makes the bucket whole in `whole`. REQUIRES: has(bucket).
  absl::StatusOr<comm::Work> Gather(int bucket, comm::Buffer whole, const std::string& name);
  // Its group on a GPU; null on the host.
  comm::DeviceGroup* device_group() const { return small_.device; }
  // Until no work that is queued on a GPU uses its memory or where it gathered to.
  void Drain();
  // Any thread.
  void Abort(const std::string& reason) { small_.group->Abort(reason); }
  size_t bytes() const { return bytes_; }

 private:
  SecondaryShards(SmallGroup small, const FlatParameters& flat, const plan::ShardPlan& shards)
      : small_(std::move(small)),
        device_(flat.device()),
        dtype_(flat.dtype()),
        shards_(shards),
        has_(shards.buckets().size(), 0) {}
  absl::Status MakeMemory();
  comm::Buffer PartOf(int bucket) const;  // In memory_.

  const SmallGroup small_;
  const Device& device_;
  const DType dtype_;
  const plan::ShardPlan& shards_;
  size_t bytes_ = 0;
  ShardMemory memory_;
  std::unique_ptr<comm::Registration> registration_;
  std::vector<uint8_t> has_;
};

}  // namespace dtrain
