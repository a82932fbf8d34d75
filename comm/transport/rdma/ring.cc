#include "comm/transport/rdma/ring.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/check.h"

namespace dtrain::comm {
namespace {
constexpr size_t kSlotBytesMin = 4096;
constexpr int kSlotsMin = 2;
}  // namespace

uint64_t SendRing::Take() {
  DT_CHECK(CanSend());
  busy_[SlotOf(next_)] = true;
  ++under_way_;
  return next_++;
}

void SendRing::Complete(size_t slot) {
  DT_CHECK(busy_.at(slot)) << " slot " << slot;
  busy_[slot] = false;
  --under_way_;
}

absl::Status SendRing::Credit(uint16_t taken) {
  const auto more = static_cast<uint16_t>(taken - static_cast<uint16_t>(taken_));
  if (more >= 0x8000) {
    return absl::OkStatus();
  }
  if (more > next_ - taken_) {
    return absl::InternalError(absl::StrFormat(
        "it says it took %d chunks more, and only %d are under way", more, next_ - taken_));
  }
  taken_ += more;
  return absl::OkStatus();
}

absl::Status ReceiveRing::Arrive(uint16_t chunk, ArrivedChunk arrived) {
  // At most chunks_.size() chunks are under way from `taken_` on, so 13 bits tell which this is.
  const uint64_t ahead = (chunk - taken_) & Immediate::kChunkMask;
  std::optional<ArrivedChunk>& place = chunks_[(taken_ + ahead) % chunks_.size()];
  if (ahead >= chunks_.size() || place.has_value()) {
    return absl::InternalError(absl::StrFormat("chunk %d came, and the next is %d of a ring of %d",
                                               chunk, taken_ & Immediate::kChunkMask,
                                               chunks_.size()));
  }
  place = arrived;
  return absl::OkStatus();
}

void ReceiveRing::Pop() {
  DT_CHECK(Front().has_value());
  chunks_[slot()].reset();
  ++taken_;
}

absl::StatusOr<RingPlan> PlanRing(int slots, size_t slot_bytes, int peers, size_t bytes_max) {
  RingPlan plan{slots, slot_bytes};
  const auto total = [&] {
    return 2 * static_cast<size_t>(peers) * static_cast<size_t>(plan.slots) * plan.slot_bytes;
  };
  while (total() > bytes_max && plan.slot_bytes / 2 >= kSlotBytesMin) {
    plan.slot_bytes = plan.slot_bytes / 2 / kSlotBytesMin * kSlotBytesMin;
  }
  while (total() > bytes_max && plan.slots > kSlotsMin) {
    plan.slots = std::max(kSlotsMin, plan.slots / 2);
  }
  if (total() > bytes_max) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "RDMA staging memory for %d peers needs at least %d bytes; staging_bytes_max "
        "is %d: raise it",
        peers, total(), bytes_max));
  }
  return plan;
}

}  // namespace dtrain::comm
