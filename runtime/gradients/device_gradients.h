// Gradients on a GPU at ZeRO stages 0 and 1: accumulated whole in the flat buffer on the compute
// stream, reduced by buckets on the device group's stream during the step's last backward: all-
// reduced at stage 0, reduce-scattered in place at stage 1, where buckets that one gradient fills
// go in one call. Sums of squares are taken on that stream too, bucket by bucket, behind each
// reduction. A bucket that is compressed is summed whole, at both stages, by a reduction of its
// own. Nothing here waits for the device but a change of compressed buckets.
//
// A backward that is captured starts nothing; behind each launch of its graph all reductions are
// started at once, and each waits on the device for the place in the graph where its bucket is full
// (bucket_marks.h). So a graph knows no group, and its backward hides them as an eager one does.
//
// Hooks of CUDA tensors run in autograd's thread of the device while the training thread waits in
// backward: one thread at a time drives this class all the same.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/nccl/device_group.h"
#include "runtime/gradients/bucket_marks.h"
#include "runtime/gradients/compression/device_compression.h"
#include "runtime/gradients/device_gradient_sync.h"
#include "runtime/gradients/gradient_collector.h"
#include "runtime/model/flat_parameters.h"
#include "runtime/plan/layout/launch_queue.h"
#include "runtime/plan/layout/shard_plan.h"

namespace dtrain {

struct DeviceGradientOptions {
  int64_t bucket_elements = 0;              // Stage 0.
  const plan::ShardPlan* shards = nullptr;  // Stage 1; null at stage 0.
  // The sum of squares is a tree over blocks at the layout's offsets, whatever the buckets.
  bool deterministic = false;
  comm::CompressionOptions compression = {};  // With the wire's type of what is not compressed.
};

class DeviceGradients final : public DeviceGradientSync {
 public:
  // Collective. REQUIRES: all outlive this object.
  static absl::StatusOr<std::unique_ptr<DeviceGradients>> Create(
      const Device& device, comm::DeviceGroup& group, FlatParameters& flat,
      const DeviceGradientOptions& options);
  ~DeviceGradients() override;

  void BeginMicroBatch(int64_t step, bool last) override;
  absl::Status FinishBackward() override;
  absl::Status QueueSquares(double* sum) override;
  const DeviceSquares& squares() const override { return *squares_; }
  DeviceGradients* whole() override { return this; }
  WholeGradients& accumulated() { return collector_.gradients(); }
  // In place of BeginMicroBatch. For a backward that is captured, which `marks` is made ready for
  // before: no reduction starts, it is marked where one could. And behind the launch of such a
  // graph: reductions wait for their marks in it, which must live as long as this micro-batch.
  absl::Status MakeMarks(BucketMarks& marks) const;
  void BeginCaptured(BucketMarks& marks);
  void EndCaptured();  // Whether the capture went well or not.
  void BeginLaunched(int64_t step, bool last, const BucketMarks& marks);
  ReducedGradient reduced() const override {
    return {flat_.gradients().const_data_ptr<float>(), false};
  }
  std::vector<uint8_t> used() const override { return collector_.used(); }
  int64_t bytes() const override;
  // Later work on the compute stream comes after reductions under way.
  void Release() override;
  const absl::Status& status() const override {
    return status_.ok() ? collector_.status() : status_;
  }

 private:
  struct DeviceBucket {
    std::string name;
    plan::FlatRange range;  // The bucket's place in the flat buffer.
    plan::FlatRange own;    // The part whose sums this rank has.
  };

  DeviceGradients(const Device& device, comm::DeviceGroup& group, FlatParameters& flat,
                  const DeviceGradientOptions& options);
  const plan::LaunchQueue& queue() const override { return collector_.queue(); }
  absl::Status UseReadinessOrder(const std::vector<int>& order) override;
  absl::Status UseBuckets(const std::vector<int>& order);
  absl::Status UseShards(const std::vector<int>& order);
  void PlaceRuns();
  absl::Status Launch(int place);
  comm::CollectiveOptions OptionsOf(size_t index) const;
  // Starts those that wait for the last of them, and takes their sums of squares.
  absl::Status ReduceCoalesced();
  // Compressed buckets go by the present places.
  absl::Status MakeCompression();
  absl::Status FinishCompressed();
  comm::Buffer BufferOf(plan::FlatRange range) const;

  const Device& device_;
  comm::DeviceGroup& group_;
  FlatParameters& flat_;
  const DeviceGradientOptions options_;
  std::unique_ptr<comm::Registration> registration_;
  std::vector<DeviceBucket> buckets_;  // In launch order (stage 0), in layout order (stage 1).
  WholeCollector collector_;
  std::unique_ptr<DeviceSquares> squares_;          // A run for each bucket.
  std::unique_ptr<DeviceCompression> compression_;  // Null: none.
  std::vector<uint8_t> ends_coalesced_;             // Stage 1 (coalesced_buckets.h).
  std::vector<size_t> coalesced_;                   // Places of buckets that go with the next one.
  MicroBatchMarks marks_;
  int64_t step_ = 0;
  bool under_way_ = false;
  absl::Status status_;  // A failure behind the launches of a backward.
};

}  // namespace dtrain
