// GatherMemory of a rank that trains on a GPU: blocks of device memory that are mapped at the
// addresses of one bucket after the other, of the sizes that buckets have
// (plan/layout/block_sizes.h).
//
// The host waits for the device only when a block is needed at other addresses while work is queued
// that reads it where it is. This wait holds the host back to about as many weights as may be live,
// which bounds the memory; one block more than that lets it run ahead.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "comm/nccl/device_group.h"
#include "runtime/device/device_range.h"
#include "runtime/device/device_stream.h"
#include "runtime/model/flat_parameters.h"
#include "runtime/plan/layout/shard_plan.h"
#include "runtime/shard/gather_memory.h"

namespace dtrain {

struct BlockLimits {
  int64_t live_max = 0;        // Elements that are gathered at a time.
  double timeout_seconds = 0;  // For work that is queued.
};

class GatherBlocks final : public GatherMemory {
 public:
  // Collective. Takes memory for what may be live, or for all. REQUIRES: all outlive this object;
  // the values of `flat` are reserved, and `shards` cuts buckets at whole granules of the device's
  // memory.
  static absl::StatusOr<std::unique_ptr<GatherBlocks>> Create(
      const Device& device, comm::DeviceGroup& group, FlatParameters& flat,
      const plan::ShardPlan& shards, const ShardMemory& shard, const BlockLimits& limits);
  ~GatherBlocks() override;

  absl::Status Open(int bucket) override;
  // The stream's order keeps operations from what is not there yet.
  absl::Status Close(int /*bucket*/) override { return absl::OkStatus(); }
  absl::Status Discard(int bucket) override;
  // Weights that are offloaded come through their place in the bucket: on the group's stream, or
  // where they are in a file on a stream of their own, once the host has read them.
  absl::StatusOr<const std::byte*> Share(int bucket) override;
  absl::Status Started(int bucket, comm::DeviceGroup* by) override;
  absl::Status Arrive(int bucket, comm::Work work) override;
  int64_t bytes() const override;
  double TakeWaitedSeconds() override;

 private:
  // One bucket's place.
  struct Place {
    std::unique_ptr<DeviceBlock> block;     // Mapped there; null: none.
    comm::DeviceGroup* by = nullptr;        // Runs its gather, or ran the last one.
    std::unique_ptr<DeviceEvent> gathered;  // On that group's stream.
    std::unique_ptr<DeviceEvent> read;      // On the compute stream, when it was discarded.
    std::unique_ptr<DeviceEvent> free;      // On the compute stream, when a share was to come.
    std::unique_ptr<DeviceEvent> shared;    // On the stream of shares from a file, when it had.
  };
  // The number of blocks of one size.
  struct Count {
    int64_t all = 0;
    int64_t kept = 0;  // For good.
  };
  // Page-locked memory that a share passes.
  struct Passage {
    std::unique_ptr<PinnedMemory> memory;
    std::unique_ptr<DeviceEvent> passed;
  };

  GatherBlocks(const Device& device, comm::DeviceGroup& group, FlatParameters& flat,
               const plan::ShardPlan& shards, const ShardMemory& shard, const BlockLimits& limits);
  absl::Status MakeBlocks();
  absl::Status MakeBlock(size_t bytes);
  absl::Status MakePassages();
  // Queues the share behind `place.free`, and what the group does next behind it.
  absl::Status SharePinned(const Place& place, std::byte* to, absl::Span<const std::byte> share);
  absl::Status ShareFromFile(const Place& place, std::byte* to, absl::Span<const std::byte> share);
  // One of `bytes` at least: the smallest that there is.
  absl::StatusOr<std::unique_ptr<DeviceBlock>> TakeBlock(size_t bytes);
  absl::StatusOr<std::unique_ptr<DeviceBlock>> TakeDiscarded(int bucket);
  void GiveBack();
  void Forget(int bucket);                 // Takes it out of discarded_.
  size_t BytesOf(int64_t elements) const;  // In whole granules.
  std::byte* At(int64_t element) const;    // The address of a flat value.

  const Device& device_;
  comm::DeviceGroup& group_;
  FlatParameters& flat_;
  const plan::ShardPlan& shards_;
  const ShardMemory shard_;
  const BlockLimits limits_;
  size_t granule_ = 0;
  std::unique_ptr<comm::Registration> registration_;
  std::vector<Place> places_;                        // By bucket.
  std::vector<std::unique_ptr<DeviceBlock>> spare_;  // Mapped nowhere that matters.
  std::deque<int> discarded_;       // Buckets whose blocks are given back; the longest ago first.
  std::map<size_t, Count> blocks_;  // By their bytes.
  std::vector<Passage> passages_;   // A ring; none where weights are no file.
  size_t passage_ = 0;              // The one for the next share.
  std::unique_ptr<DeviceStream> shares_;
  int64_t waited_nanos_ = 0;
};

}  // namespace dtrain
