// QuantizedGather of a rank that trains on the host. Received values wait in one of a few slots
// until they are unpacked, so the bytes under way are bounded.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/numeric/dtype.h"
#include "comm/symmetric_buffer.h"
#include "runtime/plan/layout/shard_plan.h"
#include "runtime/shard/quantized_gather.h"

namespace dtrain {

class QuantizedOnHost final : public QuantizedGather {
 public:
  static constexpr int kSlots = 4;

  // Collective. `dtype`: of the values. REQUIRES: all outlive this object; parts of buckets are
  // multiples of kPackedChunk elements (packed_blocks.h).
  static absl::StatusOr<std::unique_ptr<QuantizedOnHost>> Create(comm::Group& group,
                                                                 const plan::ShardPlan& shards,
                                                                 DType dtype);
  void Invalidate() override;
  bool is_packed(int bucket) const override { return is_packed_[static_cast<size_t>(bucket)] != 0; }
  absl::StatusOr<comm::Work> Start(int bucket, const std::byte* share, kernels::MutableFlat whole,
                                   const std::string& name) override;
  bool full() const override { return started_.size() == slots_.size(); }
  int oldest() const override { return started_.front().bucket; }
  void Finish(int bucket) override;
  int64_t bytes() const override;

 private:
  struct Started {
    int bucket = 0;
    size_t slot = 0;
    kernels::MutableFlat whole;
  };

  QuantizedOnHost(comm::Group& group, const plan::ShardPlan& shards, DType dtype);
  std::byte* PackedPart(int bucket) const;  // This rank's part, in packed_.

  comm::Group& group_;
  const plan::ShardPlan& shards_;
  const DType dtype_;
  std::shared_ptr<comm::SymmetricBuffer> packed_;  // The shard's, bucket after bucket.
  std::unique_ptr<comm::Registration> registration_;
  std::vector<uint8_t> is_packed_;                          // By bucket.
  std::array<std::unique_ptr<std::byte[]>, kSlots> slots_;  // Each for the largest bucket.
  std::vector<size_t> free_;
  std::deque<Started> started_;  // In order.
};

}  // namespace dtrain
