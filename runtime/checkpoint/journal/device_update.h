// The update of a journalled step on a GPU, in stream operations alone. Behind the reductions the
// compute stream rounds the gradient where it lies, and puts this rank's part into a memory of its
// own; from there a stream of its own copies it to page-locked memory of the host while the update
// and the next step run. The verdict of the step comes the same way. The journal's thread waits for
// both, and asks the group whether they are worth anything.
//
// A program that writes weights between steps is seen by LibTorch's counters of writes, which cost
// nothing; a write past them is not seen. For the thread that trains; what Take gives is for the
// journal's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/checkpoint/journal/journal_update.h"
#include "runtime/device/device.h"
#include "runtime/device/device_stream.h"

namespace dtrain {

class DeviceJournalUpdate final : public JournalUpdate,
                                  public std::enable_shared_from_this<DeviceJournalUpdate> {
 public:
  // The arguments are those of MakeJournalUpdate.
  DeviceJournalUpdate(const EngineState& engine, std::vector<plan::OwnedRange> stored,
                      const JournalUpdateOptions& options);
  // Waits for copies under way.
  ~DeviceJournalUpdate() override;

  // ResourceExhausted names what there is no memory for, and on which side.
  absl::Status Allocate() override;
  void Listen(StepHooks& hooks) override;
  bool FindsWritten() override;
  void Begin(const StepEnd& end, bool keeps) override;
  bool End() override;
  LateUpdate Take() override;
  void Await() override;

 private:
  // Where a kept step comes to be in the host's memory.
  struct Slot {
    std::unique_ptr<PinnedMemory> gradient;
    std::unique_ptr<PinnedMemory> verdict;  // kernels::StepVerdictNumbers.
    std::unique_ptr<DeviceEvent> copied;    // The gradient is there,
    std::unique_ptr<DeviceEvent> landed;    // and the verdict.
  };

  const Device& device() const { return engine_.flat->device(); }
  size_t gradient_bytes() const;
  absl::Status AllocateSlot(Slot& slot) const;
  // StepHooks::gradient_reduced.
  absl::Status Reduced(const ReducedOnDevice& reduced);
  absl::Status Round(const GradientMemory& gradient);
  absl::Status QueueCopy();
  // For either thread.
  absl::Status AwaitSlot(const Slot& slot, bool with_gradient) const;
  absl::StatusOr<KeptUpdate> Read(const Slot& slot, StepEnd end,
                                  const ReducedOnDevice& reduced) const;
  int64_t Writes() const;

  const EngineState& engine_;
  const std::vector<plan::OwnedRange> stored_;
  const JournalUpdateOptions options_;
  std::shared_ptr<DeviceMemory> part_;      // This rank's part of the gradient, until it is copied.
  std::unique_ptr<DeviceEvent> rounded_;    // The part is whole.
  std::unique_ptr<DeviceStream> copies_;    // Copies to the host.
  Slot slots_[2];                           // Two take turns.
  size_t slot_ = 0;                         // The step under way takes this one.
  const DeviceEvent* last_copy_ = nullptr;  // The last one out of part_; null: none.
  StepEnd end_;                             // The step under way ends so.
  bool keeps_ = false;
  ReducedOnDevice reduced_;
  absl::Status queued_;          // Whether all of it could be queued.
  std::optional<int64_t> left_;  // Writes() behind the last update.
};

}  // namespace dtrain
