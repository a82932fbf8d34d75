#include "runtime/optimizer/share_return.h"

#include <cstring>

#include "base/status.h"
#include "runtime/optimizer/update_exchange.h"
#include "runtime/plan/memory/offload_plan.h"

namespace dtrain {

absl::StatusOr<std::unique_ptr<ShareReturn>> ShareReturn::Create(
    const Device& device, const ShareReturnOptions& options) {
  std::unique_ptr<ShareReturn> made(new ShareReturn(device, options));
  made->slots_.resize(static_cast<size_t>(plan::kShareBuffers));
  for (Slot& slot : made->slots_) {
    const size_t bytes = static_cast<size_t>(options.elements_max) * made->width_;
    DT_ASSIGN_OR_RETURN(slot.memory, PinnedMemory::Create(device, bytes));
    DT_ASSIGN_OR_RETURN(slot.written, DeviceEvent::Create(device, /*timing=*/false));
  }
  return made;
}

ShareReturn::~ShareReturn() { device_.Synchronize().IgnoreError(); }

absl::Status ShareReturn::Land(Slot& slot) const {
  if (slot.runs.empty()) {
    return absl::OkStatus();
  }
  DT_RETURN_IF_ERROR(slot.written->Wait(Deadline::After(options_.timeout)));
  for (const UpdatePiece& run : slot.runs) {
    std::memcpy(InShare(run), slot.at(run.local, width_), BytesOf(run));
  }
  slot.runs.clear();
  return absl::OkStatus();
}

absl::StatusOr<EngineState::ValueWindow> ShareReturn::Begin(absl::Span<const UpdatePiece> pieces) {
  Slot& slot = slots_[next_ % slots_.size()];
  DT_RETURN_IF_ERROR(Land(slot));
  slot.runs = JoinedPieces(pieces);
  if (options_.dtype == DType::kFloat32) {
    for (const UpdatePiece& run : slot.runs) {
      std::memcpy(slot.at(run.local, width_), InShare(run), BytesOf(run));
    }
  }
  return EngineState::ValueWindow{static_cast<std::byte*>(slot.memory->data()),
                                  slot.runs.empty() ? 0 : slot.runs.front().local};
}

absl::Status ShareReturn::End() { return slots_[next_++ % slots_.size()].written->Record(); }

absl::Status ShareReturn::Flush() {
  for (Slot& slot : slots_) {
    DT_RETURN_IF_ERROR(Land(slot));
  }
  return absl::OkStatus();
}

}  // namespace dtrain
