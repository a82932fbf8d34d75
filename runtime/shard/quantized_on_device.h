// QuantizedGather of a rank that trains on a GPU: packing, the gather and unpacking follow one
// another on the group's stream, so that what arrives needs one place, and nothing waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/nccl/device_group.h"
#include "runtime/device/device.h"
#include "runtime/plan/layout/shard_plan.h"
#include "runtime/shard/quantized_gather.h"

namespace dtrain {

class QuantizedOnDevice final : public QuantizedGather {
 public:
  // Collective. `dtype`: of the values. REQUIRES: all outlive this object; parts of buckets are
  // multiples of kAlignedRun elements (packed_on_device.h).
  static absl::StatusOr<std::unique_ptr<QuantizedOnDevice>> Create(const Device& device,
                                                                   comm::DeviceGroup& group,
                                                                   const plan::ShardPlan& shards,
                                                                   DType dtype);
  ~QuantizedOnDevice() override;

  void Invalidate() override;
  bool is_packed(int bucket) const override { return is_packed_[static_cast<size_t>(bucket)] != 0; }
  // `share` may be of work that is queued, on either stream.
  absl::StatusOr<comm::Work> Start(int bucket, const std::byte* share, kernels::MutableFlat whole,
                                   const std::string& name) override;
  bool full() const override { return false; }
  int oldest() const override { return -1; }
  // Start has queued it.
  void Finish(int /*bucket*/) override {}
  int64_t bytes() const override;

 private:
  QuantizedOnDevice(const Device& device, comm::DeviceGroup& group, const plan::ShardPlan& shards,
                    DType dtype);
  absl::Status MakeMemory();
  absl::Status QueuePack(int bucket, const std::byte* share);
  absl::Status QueueUnpack(int64_t part, kernels::MutableFlat whole);
  std::byte* PackedPart(int bucket) const;  // This rank's part, in packed_.

  const Device& device_;
  comm::DeviceGroup& group_;
  const plan::ShardPlan& shards_;
  const DType dtype_;
  std::shared_ptr<DeviceMemory> packed_;    // The shard's, bucket after bucket.
  std::shared_ptr<DeviceMemory> received_;  // Room for the largest bucket; has the one under way.
  std::shared_ptr<DeviceMemory> wide_;      // A part in fp32, where kernels do not know the type.
  std::unique_ptr<comm::Registration> packed_registration_;
  std::unique_ptr<comm::Registration> received_registration_;
  // By bucket: the compute stream, where it was last packed.
  std::vector<std::unique_ptr<DeviceEvent>> ready_;
  std::vector<uint8_t> is_packed_;  // By bucket.
};

}  // namespace dtrain
