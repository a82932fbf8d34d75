#include "comm/transport/rdma/direct_messages.h"

#include "absl/strings/str_format.h"

namespace dtrain::comm {

absl::Status DirectReceives::Done(uint16_t number) {
  const uint64_t ahead = (number - taken_) & Immediate::kChunkMask;
  const size_t place = static_cast<size_t>((taken_ + ahead) % kOffersMax);
  if (ahead >= offered_ - taken_ || done_[place]) {
    return absl::InternalError(
        absl::StrFormat("it says that long message %d is in place; offered are %d to %d", number,
                        taken_ & Immediate::kChunkMask, offered_ & Immediate::kChunkMask));
  }
  done_[place] = true;
  return absl::OkStatus();
}

void DirectReceives::Take() {
  done_[taken_ % kOffersMax] = false;
  ++taken_;
}

absl::Status DirectSends::OfferCame() {
  if (++offers_ - sent_ > kOffersMax) {
    return absl::InternalError(absl::StrFormat(
        "it offers memory for long message %d while %d is under way", offers_ - 1, sent_));
  }
  return absl::OkStatus();
}

}  // namespace dtrain::comm
