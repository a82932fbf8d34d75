#include "runtime/checkpoint/device_copies.h"

#include <utility>

#include "base/check.h"
#include "base/deadline.h"
#include "base/status.h"

namespace dtrain {

absl::StatusOr<std::shared_ptr<DeviceCopies>> DeviceCopies::Create(const Device& device,
                                                                   absl::Duration timeout) {
  std::shared_ptr<DeviceCopies> copies(new DeviceCopies(device, timeout));
  DT_ASSIGN_OR_RETURN(copies->stream_, DeviceStream::Create(device));
  DT_ASSIGN_OR_RETURN(copies->taken_, DeviceEvent::Create(device, /*timing=*/false));
  DT_ASSIGN_OR_RETURN(copies->copied_, DeviceEvent::Create(device, /*timing=*/false));
  return copies;
}

absl::Status DeviceCopies::UseDevice() const {
  return device_.Check(device_.api().SetDevice(device_.place().index), "cudaSetDevice");
}

absl::Status DeviceCopies::Note(const absl::Status& status) {
  const std::lock_guard lock(mutex_);
  broken_.Update(status);
  return broken_;
}

absl::Status DeviceCopies::broken() {
  const std::lock_guard lock(mutex_);
  return broken_;
}

absl::Status DeviceCopies::Begin() {
  {
    const std::lock_guard lock(mutex_);
    broken_ = absl::OkStatus();  // The snapshot before has nothing under way that is still wanted.
  }
  absl::Status begun = taken_->Record();
  if (begun.ok()) {
    begun = stream_->WaitFor(*taken_);
  }
  return Note(begun);
}

absl::Status DeviceCopies::AwaitBegin() { return AwaitEvent(*taken_); }

void DeviceCopies::HoldUpdate() {
  absl::Status held = stream_->Record(*copied_);
  if (held.ok()) {
    held = device_.Check(device_.api().StreamWaitEvent(device_.stream(), copied_->handle()),
                         "cudaStreamWaitEvent");
  }
  Note(held).IgnoreError();  // The thread that writes finds it, and gives the save up.
}

absl::StatusOr<DeviceCopies::Block> DeviceCopies::NewBlock() const {
  DT_RETURN_IF_ERROR(UseDevice());
  Block block;
  DT_ASSIGN_OR_RETURN(block.copied, DeviceEvent::Create(device_, /*timing=*/false));
  DT_ASSIGN_OR_RETURN(block.memory, PinnedMemory::Create(device_, checkpoint::kSegmentBytes));
  return block;
}

std::byte* DeviceCopies::MakeBlock() {
  absl::StatusOr<Block> block = NewBlock();
  if (!block.ok()) {
    return nullptr;
  }
  auto* const data = static_cast<std::byte*>(block->memory->data());
  const std::lock_guard lock(mutex_);
  blocks_.emplace(data, *std::move(block));
  return data;
}

void DeviceCopies::FreeBlock(std::byte* block) {
  // A save that failed may have left copies under way. A device that hangs is waited for once.
  if (UseDevice().ok() && !absl::IsDeadlineExceeded(broken())) {
    Note(EventOf(block).Wait(Deadline::After(timeout_))).IgnoreError();
  }
  const std::lock_guard lock(mutex_);
  blocks_.erase(block);
}

DeviceEvent& DeviceCopies::EventOf(const std::byte* block) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(block);
  DT_CHECK(found != blocks_.end()) << "a block that is not of this memory";
  return *found->second.copied;
}

absl::Status DeviceCopies::Copy(absl::Span<const checkpoint::BlockPart> parts, std::byte* block) {
  DT_RETURN_IF_ERROR(UseDevice());
  const DeviceEvent& copied = EventOf(block);
  absl::Status status = stream_->WaitFor(copied);  // Copies of a save that was given up.
  for (const checkpoint::BlockPart& part : parts) {
    if (status.ok()) {
      status = stream_->Copy(block + part.at, part.from.data(), part.from.size());
    }
  }
  status.Update(stream_->Record(copied));
  return status;
}

absl::Status DeviceCopies::CopyInOrder(absl::Span<const checkpoint::BlockPart> parts,
                                       std::byte* block) {
  DT_RETURN_IF_ERROR(UseDevice());
  DeviceEvent& copied = EventOf(block);
  comm::CudaApi& api = device_.api();
  absl::Status status =
      device_.Check(api.StreamWaitEvent(device_.stream(), copied.handle()), "cudaStreamWaitEvent");
  for (const checkpoint::BlockPart& part : parts) {
    if (status.ok()) {
      status = device_.Check(
          api.CopyAsync(block + part.at, part.from.data(), part.from.size(), device_.stream()),
          "cudaMemcpyAsync");
    }
  }
  status.Update(copied.Record());
  return status;
}

absl::Status DeviceCopies::Await(const std::byte* block) { return AwaitEvent(EventOf(block)); }

absl::Status DeviceCopies::AwaitEvent(const DeviceEvent& event) {
  DT_RETURN_IF_ERROR(UseDevice());
  DT_RETURN_IF_ERROR(broken());
  return Note(Annotate(event.Wait(Deadline::After(timeout_)), "a copy for a checkpoint"));
}

}  // namespace dtrain
