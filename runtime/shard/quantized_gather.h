// The gathers of ZeRO stage 3 in int8 blocks (ZeRO++'s qwZ, Wang et al. 2023, arXiv 2306.10209): a
// half of the bytes that bf16 takes, a quarter of fp32's.
//
// This rank's share of a bucket is packed once for each version of the weights. What arrives waits
// in one of a few slots until it is unpacked, so the bytes under way are bounded. Every rank
// unpacks its own share too, so all compute with the same weights, and how often or on how many
// ranks a bucket is gathered changes none of them. Not thread-safe; all ranks make the same calls
// in the same order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/group.h"
#include "comm/symmetric_buffer.h"
#include "kernels/flat.h"
#include "runtime/plan/shard_plan.h"

namespace dtrain {

class QuantizedGather {
 public:
  static constexpr int kSlots = 4;

  // Collective. `shard`: this rank's values, [shard elements]. REQUIRES: all outlive this object;
  // parts of buckets are multiples of kPackedChunk elements (packed_blocks.h).
  static absl::StatusOr<std::unique_ptr<QuantizedGather>> Create(comm::Group& group,
                                                                 const plan::ShardPlan& shards,
                                                                 kernels::ConstFlat shard);
  // The weights changed. REQUIRES: no gather is under way.
  void Invalidate();
  // Collective. REQUIRES: !full().
  absl::StatusOr<comm::Work> Start(int bucket, const std::string& name);
  // All slots are taken: Finish the oldest first.
  bool full() const { return started_.size() == slots_.size(); }
  int oldest() const { return started_.front().bucket; }
  // The gather of `bucket` is over: its values, whole. Does nothing for buckets not started here.
  void Finish(int bucket, kernels::MutableFlat whole);
  int64_t bytes() const;

 private:
  struct Started {
    int bucket = 0;
    size_t slot = 0;
  };

  QuantizedGather(comm::Group& group, const plan::ShardPlan& shards, kernels::ConstFlat shard);
  std::byte* PackedPart(int bucket) const;  // Of this rank, in packed_.

  comm::Group& group_;
  const plan::ShardPlan& shards_;
  const kernels::ConstFlat shard_;
  std::shared_ptr<comm::SymmetricBuffer> packed_;  // The shard's, bucket after bucket.
  std::unique_ptr<comm::Registration> registration_;
  std::vector<uint8_t> is_packed_;                          // By bucket.
  std::array<std::unique_ptr<std::byte[]>, kSlots> slots_;  // Each for the largest bucket.
  std::vector<size_t> free_;
  std::deque<Started> started_;  // In order.
};

}  // namespace dtrain
