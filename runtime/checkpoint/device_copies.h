// Copies of a GPU's memory for saves beside training. They go to page-locked memory on a stream of
// their own, behind what the compute stream had to do when the snapshot was taken, and the next
// update waits for them on the device. So the thread that trains waits for no copy, and the
// thread that writes waits for each before it reads.
//
// What the next work of the compute stream may change, and what is whole only for a while there, is
// copied in that stream's own order (CopyInOrder).
//
// Begin and HoldUpdate are for the thread that trains, all else is thread-safe. An error makes the
// save fail whose copies they are, and nothing else.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "checkpoint/commit/staging_pool.h"
#include "runtime/device/device.h"
#include "runtime/device/device_stream.h"

namespace dtrain {

class DeviceCopies final : public checkpoint::StagingDevice {
 public:
  // REQUIRES: `device` is a GPU and outlives it. `timeout`: the longest wait for it.
  static absl::StatusOr<std::shared_ptr<DeviceCopies>> Create(const Device& device,
                                                              absl::Duration timeout);

  // A snapshot is what is in the device's memory when the compute stream comes to this place.
  // Copies that are queued later are of this snapshot.
  absl::Status Begin();
  // Waits until the compute stream has come to that place: what it copied before is there.
  absl::Status AwaitBegin();
  // What is queued on the compute stream later comes behind all copies of the snapshot. REQUIRES:
  // they are queued.
  void HoldUpdate();

  std::byte* MakeBlock() override;
  void FreeBlock(std::byte* block) override;
  absl::Status Copy(absl::Span<const checkpoint::BlockPart> parts, std::byte* block) override;
  absl::Status CopyInOrder(absl::Span<const checkpoint::BlockPart> parts,
                           std::byte* block) override;
  absl::Status Await(const std::byte* block) override;

 private:
  struct Block {
    std::unique_ptr<PinnedMemory> memory;
    std::unique_ptr<DeviceEvent> copied;  // Behind the last copies to it.
  };

  DeviceCopies(const Device& device, absl::Duration timeout) : device_(device), timeout_(timeout) {}
  // The current device is one of the thread.
  absl::Status UseDevice() const;
  absl::StatusOr<Block> NewBlock() const;
  DeviceEvent& EventOf(const std::byte* block);
  absl::Status AwaitEvent(const DeviceEvent& event);
  // Unless `status` is OK, makes the snapshot's copies worthless. Gives why they are.
  absl::Status Note(const absl::Status& status);
  absl::Status broken();

  const Device& device_;
  const absl::Duration timeout_;
  std::unique_ptr<DeviceStream> stream_;
  std::unique_ptr<DeviceEvent> taken_;   // The snapshot's place on the compute stream.
  std::unique_ptr<DeviceEvent> copied_;  // All of its copies.
  std::mutex mutex_;
  std::map<const std::byte*, Block> blocks_;  // By their memory.
  absl::Status broken_;                       // Why copies of this snapshot are worthless.
};

}  // namespace dtrain
