// The part of RdmaTransport that moves long messages without copying them.
#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "comm/transport/rdma/rdma_transport.h"
#include "comm/transport/rdma/request_id.h"

namespace dtrain::comm {

// Offers the memory of the next long messages early, so that their first bytes need not wait until
// all earlier messages are done.
absl::Status RdmaTransport::MakeOffers(size_t peer) {
  RdmaPeer& ends = parts_.peers[peer];
  Lane& lane = states_[peer].receives;
  for (; lane.offered < lane.queue.size(); ++lane.offered) {
    const Transfer& transfer = lane.queue[lane.offered];
    if (!IsLong(transfer)) {
      continue;
    }
    if (!ends.direct_receives.CanOffer()) {
      break;
    }
    const MemoryRegion* const region = parts_.memory->Find(transfer.data, transfer.bytes);
    const uint64_t number = ends.direct_receives.Offer();
    const size_t box = static_cast<size_t>(number % kOffersMax);
    Offer& offer = ends.offers_out[box];
    offer.number = number;
    offer.address = region == nullptr ? 0 : reinterpret_cast<uint64_t>(transfer.data);
    offer.bytes = transfer.bytes;
    offer.key = region == nullptr ? 0 : region->remote_key();
    RdmaWrite write;
    write.id = RequestId{RequestId::Kind::kOffer, peer, 0, box}.Encode();
    write.from = &offer;
    write.bytes = sizeof(Offer);
    write.local_key = parts_.region->local_key();
    write.to = ends.remote_offers + box * sizeof(Offer);
    write.remote_key = ends.remote_key;
    write.immediate = With(peer, Immediate::Kind::kOffer, number).Encode();
    DT_RETURN_IF_ERROR(ends.pairs[0]->Post(write));
  }
  return absl::OkStatus();
}

// Whether anything could be done for the front message, which is long.
absl::StatusOr<bool> RdmaTransport::SendDirectly(size_t peer) {
  RdmaPeer& ends = parts_.peers[peer];
  State& state = states_[peer];
  Lane& lane = state.sends;
  if (!ends.direct_sends.HasOffer()) {
    return false;
  }
  const Transfer& transfer = lane.front();
  Offer offer;  // The device writes the box, so it is read once.
  std::memcpy(&offer, &ends.offers_in[ends.direct_sends.box()], sizeof(offer));
  if (offer.number != ends.direct_sends.number() || offer.bytes != transfer.bytes) {
    return absl::InternalError(
        absl::StrFormat("%s expects %d bytes (long message %d) where rank %d sends %d (number %d): "
                        "the ranks are in "
                        "different calls, or in one call with different sizes",
                        PeerName(static_cast<int>(peer)), offer.bytes, offer.number, rank(),
                        transfer.bytes, ends.direct_sends.number()));
  }
  const MemoryRegion* const source =
      offer.address == 0 ? nullptr : parts_.memory->Find(transfer.data, transfer.bytes);
  if (source == nullptr) {
    if (ends.pairs.size() > 1 && state.pieces_under_way != 0) {
      return false;  // The message's chunks must not overtake the end of the message before it.
    }
    lane.by_ring = true;
    ends.direct_sends.Sent();
    return true;
  }
  bool any = false;
  while (lane.done < transfer.bytes && state.pieces_under_way < kPiecesUnderWayMax) {
    DT_RETURN_IF_ERROR(PostPiece(peer, offer, *source));
    any = true;
  }
  if (lane.done < transfer.bytes) {
    return any;
  }
  if (ends.pairs.size() > 1) {
    // Queue pairs can overtake each other: all pieces must be in place before the message is
    // announced.
    if (state.pieces_under_way != 0) {
      return any;
    }
    DT_RETURN_IF_ERROR(PostDone(peer));
  }
  ends.direct_sends.Sent();
  lane.Advance();
  return true;
}

absl::Status RdmaTransport::PostPiece(size_t peer, const Offer& offer, const MemoryRegion& source) {
  RdmaPeer& ends = parts_.peers[peer];
  Lane& lane = states_[peer].sends;
  const Transfer& transfer = lane.front();
  const size_t bytes = std::min(kPieceBytes, transfer.bytes - lane.done);
  const size_t pair = lane.done / kPieceBytes % ends.pairs.size();
  RdmaWrite write;
  write.id = RequestId{RequestId::Kind::kPiece, peer, pair, 0}.Encode();
  write.from = static_cast<const std::byte*>(transfer.data) + lane.done;
  write.bytes = static_cast<uint32_t>(bytes);
  write.local_key = source.local_key();
  write.to = offer.address + lane.done;
  write.remote_key = offer.key;
  if (ends.pairs.size() == 1 && lane.done + bytes == transfer.bytes) {
    write.immediate = With(peer, Immediate::Kind::kDone, offer.number).Encode();
  }
  lane.done += bytes;
  ++states_[peer].pieces_under_way;
  ++states_[peer].posted;
  return ends.pairs[pair]->Post(write);
}

absl::Status RdmaTransport::PostDone(size_t peer) {
  RdmaPeer& ends = parts_.peers[peer];
  RdmaWrite write;  // An empty write: only the immediate matters.
  write.id = RequestId{RequestId::Kind::kPiece, peer, 0, 0}.Encode();
  write.immediate = With(peer, Immediate::Kind::kDone, ends.direct_sends.number()).Encode();
  ++states_[peer].pieces_under_way;
  ++states_[peer].posted;
  return ends.pairs[0]->Post(write);
}

}  // namespace dtrain::comm
