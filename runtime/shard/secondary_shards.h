// Weights shared out a second time, inside small groups (ZeRO++'s hpZ, Wang et al. 2023, arXiv
// 2306.10209): a step's first gather of a bucket goes over all ranks, later ones, in backward and
// in further micro-batches, over the small group alone, whose links are fast. Costs 1 / size of the
// weights more memory.
//
// Not thread-safe. All ranks make the same calls in the same order.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "comm/group.h"
#include "comm/symmetric_buffer.h"
#include "runtime/plan/shard_plan.h"

namespace dtrain {

class SecondaryShards {
 public:
  // Collective over `world`, whose neighbours by rank form groups of `size`, which divides its own.
  // `store`: the one that `world` was made with. REQUIRES: `shards` outlives this object.
  static absl::StatusOr<std::unique_ptr<SecondaryShards>> Create(comm::Group& world,
                                                                 comm::Store* store, int size,
                                                                 const plan::ShardPlan& shards,
                                                                 DType dtype);
  // The weights changed.
  void Invalidate();
  bool has(int bucket) const { return has_[static_cast<size_t>(bucket)] != 0; }
  // Keeps this rank's part of a whole bucket.
  void Keep(int bucket, const std::byte* whole);
  // Collective over the small group: makes the bucket whole in `whole`. REQUIRES: has(bucket).
  absl::StatusOr<comm::Work> Gather(int bucket, comm::Buffer whole, const std::string& name);
  // Any thread.
  void Abort(const std::string& reason) { group_->Abort(reason); }
  size_t bytes() const { return memory_->bytes(); }

 private:
  SecondaryShards(const plan::ShardPlan& shards, DType dtype)
      : shards_(shards), dtype_(dtype), has_(shards.buckets().size(), 0) {}
  comm::Buffer PartOf(int bucket) const;  // In memory_.

  const plan::ShardPlan& shards_;
  const DType dtype_;
  std::unique_ptr<comm::Group> group_;
  std::shared_ptr<comm::SymmetricBuffer> memory_;
  std::unique_ptr<comm::Registration> registration_;
  std::vector<uint8_t> has_;
};

}  // namespace dtrain
