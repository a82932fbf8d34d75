#include "runtime/checkpoint/journal/queued_copies.h"

#include <cstring>

#include "ATen/Functions.h"
#include "base/deadline.h"
#include "base/status.h"

namespace dtrain {
namespace {

// Copies begin at multiples of this, as tensors do.
constexpr size_t kRoomAlign = 64;

size_t CopyRoom(size_t bytes) { return (bytes + kRoomAlign - 1) / kRoomAlign * kRoomAlign; }

}  // namespace

QueuedCopies::~QueuedCopies() {
  if (queued_ != nullptr) {
    device_.Synchronize().IgnoreError();
  }
}

absl::Status QueuedCopies::Reserve(size_t bytes) {
  if (queued_ == nullptr) {
    DT_ASSIGN_OR_RETURN(queued_, DeviceEvent::Create(device_, /*timing=*/false));
  }
  if (memory_ == nullptr || bytes > bytes_) {
    DT_ASSIGN_OR_RETURN(memory_, PinnedMemory::Create(device_, bytes));
    bytes_ = bytes;
  }
  return absl::OkStatus();
}

absl::Status QueuedCopies::Queue(absl::Span<const NamedTensor> tensors) {
  size_t bytes = 0;
  for (const NamedTensor& item : tensors) {
    bytes += CopyRoom(item.tensor.nbytes());
  }
  DT_RETURN_IF_ERROR(Reserve(bytes));
  copies_.clear();
  auto* to = static_cast<std::byte*>(memory_->data());
  for (const auto& [name, tensor] : tensors) {
    // On the device a copy of its own, if there is one, is queued too, and its memory is used again
    // by what the compute stream does later.
    const at::Tensor whole = tensor.detach().contiguous();
    if (tensor.device() == device_.tensors()) {
      DT_RETURN_IF_ERROR(device_.Copy(to, whole.const_data_ptr(), whole.nbytes()));
    } else {
      std::memcpy(to, whole.const_data_ptr(), whole.nbytes());
    }
    copies_.push_back({name, at::from_blob(to, whole.sizes(), whole.scalar_type())});
    to += CopyRoom(whole.nbytes());
  }
  return queued_->Record();
}

absl::StatusOr<std::vector<NamedTensor>> QueuedCopies::Wait() const {
  DT_RETURN_IF_ERROR(queued_->Wait(Deadline::After(timeout_)));
  return copies_;
}

}  // namespace dtrain
