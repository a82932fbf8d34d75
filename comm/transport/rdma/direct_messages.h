// Long messages that a device writes straight into the receiver's memory. Pure accounting, no
// memory.
//
// Both ranks count the long messages of a direction. The receiver offers memory for the next ones,
// at most kOffersMax ahead, by writing an Offer into the sender's box for it (number modulo
// kOffersMax); the sender writes the bytes there and announces it. If the receiver's memory cannot
// be reached (address 0), or the sender's cannot be read by the device, the message goes through
// the ring instead, in chunks that are marked (Immediate::of_long). Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "comm/transport/rdma/ring.h"

namespace dtrain::comm {

inline constexpr int kOffersMax = 2;

// Byte for byte on the wire.
struct Offer {
  uint64_t number = 0;
  uint64_t address = 0;  // Address of the receiver's memory; 0: send through the ring.
  uint64_t bytes = 0;
  uint32_t key = 0;
  uint32_t unused = 0;
};
static_assert(sizeof(Offer) == 32, "the same on every host, without padding");

class DirectReceives {
 public:
  bool CanOffer() const { return offered_ - taken_ < kOffersMax; }
  // The number of the message that is offered now. REQUIRES: CanOffer().
  uint64_t Offer() { return offered_++; }
  // Message `number` (modulo 2^13) has arrived whole. Internal: it was not offered, or came twice.
  absl::Status Done(uint16_t number);
  // Whether the next message has come, directly.
  bool FrontIsDone() const { return done_[taken_ % kOffersMax]; }
  // The next message is complete, whichever way it came.
  void Take();

 private:
  uint64_t offered_ = 0;
  uint64_t taken_ = 0;
  std::array<bool, kOffersMax> done_ = {};
};

class DirectSends {
 public:
  // Internal: the peer made more offers than it may.
  absl::Status OfferCame();
  // Whether the offer for the next message is in box().
  bool HasOffer() const { return offers_ > sent_; }
  uint64_t number() const { return sent_; }
  size_t box() const { return static_cast<size_t>(sent_ % kOffersMax); }
  // The next message no longer needs its offer.
  void Sent() { ++sent_; }

 private:
  uint64_t offers_ = 0;
  uint64_t sent_ = 0;
};

}  // namespace dtrain::comm
