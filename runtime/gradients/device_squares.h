// The sum of squares of what a rank has of the reduced gradient on a GPU, queued on the device
// group's stream behind the reductions: norm blocks as they come, one tree at the end. Nothing
// waits but FirstNonFinite.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/nccl/device_group.h"
#include "runtime/device/device.h"
#include "runtime/plan/layout/layout.h"

namespace dtrain {

class DeviceSquares {
 public:
  // A run of elements whose norm blocks are summed together.
  struct Run {
    const float* data = nullptr;  // On the device.
    int64_t begin = 0;            // In the layout.
    int64_t elements = 0;
    int64_t at = 0;  // Its first block's place among the sums.
  };

  // REQUIRES: both outlive it. `room`: the most blocks of any SetRuns.
  static absl::StatusOr<std::unique_ptr<DeviceSquares>> Create(const Device& device,
                                                               comm::DeviceGroup& group,
                                                               int64_t room);
  // Sets the runs of elements that are summed: together all that this rank has. The runs' blocks
  // follow one another. `of_shard`: the other ranks have other elements.
  void SetRuns(std::vector<Run> runs, bool of_shard);
  // The same where the sum must not depend on how gradients are shared out: each block has the
  // place of its number in the layout, `blocks` in all. `shared_out`: every block is one rank's.
  void SetOrderedRuns(std::vector<Run> runs, int64_t blocks, bool shared_out);
  // Whether each rank's sum is of its share alone, or of everything.
  bool of_shard() const { return of_shard_; }

  // Queues the sums of one run's blocks, which are final on the group's stream. Ordered runs are
  // summed in Queue.
  absl::Status QueueRun(size_t run);
  // Queues the tree over all blocks into *sum (device memory).
  absl::Status Queue(double* sum);
  int64_t bytes() const { return static_cast<int64_t>(memory_->bytes()); }

  // After a step whose sum was not finite, until the next Queue: the layout's element where the
  // first block that is not finite begins, in what this rank had; -1: none. Waits for the device.
  absl::StatusOr<int64_t> FirstNonFinite() const;

 private:
  DeviceSquares(const Device& device, comm::DeviceGroup& group, int64_t room,
                std::shared_ptr<DeviceMemory> memory)
      : device_(device), group_(group), room_(room), memory_(std::move(memory)) {}
  double* sums() const { return static_cast<double*>(memory_->data()); }
  absl::Status QueueBlocks(const Run& run);
  absl::Status QueueOrderedBlocks();

  const Device& device_;
  comm::DeviceGroup& group_;
  const int64_t room_;
  // Three times `room_` sums: this step's, the tree's scratch, the last step's.
  const std::shared_ptr<DeviceMemory> memory_;
  std::vector<Run> runs_;
  std::vector<Run> last_runs_;  // The runs of the last step.
  int64_t count_ = 0;           // Blocks.
  bool ordered_ = false;
  bool shared_out_ = false;
  bool of_shard_ = false;
};

}  // namespace dtrain
