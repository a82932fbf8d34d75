// Slots and credits of one direction between two ranks. Pure accounting, no memory.
//
// The receiver has a ring of slots; chunk number s of the sender goes to slot s modulo their
// number, with an immediate that holds s and the number of chunks of the other direction that the
// sender has taken out of its own slots (its credit to the peer). A sender never has more chunks
// under way than there are slots, so nothing is overwritten and every chunk finds a posted receive.
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace dtrain::comm {

// More would make the numbers in an immediate ambiguous.
inline constexpr int kSlotsMax = 256;

// The 32 bits that come with a write. All kinds bring credit.
struct Immediate {
  enum class Kind : uint8_t {
    kChunk,
    kCredit,  // Brings only credit.
    kOffer,   // The next offer is in its place (direct_messages.h).
    kDone,    // The bytes of the oldest offer are all in theirs.
  };
  static constexpr uint32_t kChunkMask = 0x1fff;

  Kind kind = Kind::kChunk;
  bool of_long = false;  // Chunks only: the message could have gone directly.
  uint16_t chunk = 0;    // Chunks only: the number modulo 2^13.
  uint16_t taken = 0;    // Chunks taken so far, modulo 2^16.

  uint32_t Encode() const {
    return (static_cast<uint32_t>(kind) << 30) | (of_long ? 1U << 29 : 0U) |
           ((chunk & kChunkMask) << 16) | taken;
  }
  static Immediate Decode(uint32_t bits) {
    return {static_cast<Kind>(bits >> 30), ((bits >> 29) & 1U) != 0,
            static_cast<uint16_t>((bits >> 16) & kChunkMask), static_cast<uint16_t>(bits & 0xffff)};
  }
};

struct ArrivedChunk {
  uint32_t bytes = 0;
  bool of_long = false;
};

class SendRing {
 public:
  explicit SendRing(int slots) : busy_(static_cast<size_t>(slots)) {}
  // Whether the next chunk's slot is free here and at the peer.
  bool CanSend() const {
    return next_ - taken_ < busy_.size() && !busy_[static_cast<size_t>(next_ % busy_.size())];
  }
  // The number of the chunk that is sent now. REQUIRES: CanSend().
  uint64_t Take();
  size_t SlotOf(uint64_t chunk) const { return static_cast<size_t>(chunk % busy_.size()); }
  // The chunk of `slot` has left this rank's memory.
  void Complete(size_t slot);
  // The peer's `taken`; an old one, which came by a slower queue pair, changes nothing. Internal:
  // more than were sent.
  absl::Status Credit(uint16_t taken);
  // Chunks whose memory is still being read.
  size_t under_way() const { return under_way_; }

 private:
  std::vector<bool> busy_;
  uint64_t next_ = 0;
  uint64_t taken_ = 0;
  size_t under_way_ = 0;
};

class ReceiveRing {
 public:
  explicit ReceiveRing(int slots) : chunks_(static_cast<size_t>(slots)) {}
  // Chunk number `chunk` (modulo 2^13) has come, in any order within the ring. Internal: its slot
  // is taken.
  absl::Status Arrive(uint16_t chunk, ArrivedChunk arrived);
  // The next chunk in order, when it is here, in slot().
  std::optional<ArrivedChunk> Front() const { return chunks_[slot()]; }
  size_t slot() const { return static_cast<size_t>(taken_ % chunks_.size()); }
  // REQUIRES: Front().
  void Pop();
  uint16_t taken() const { return static_cast<uint16_t>(taken_); }
  // Whether so many credits have not been given that the sender may be waiting for them.
  bool OwesCredit() const { return (taken_ - told_) * 2 >= chunks_.size(); }
  void ToldCredit() { told_ = taken_; }

 private:
  std::vector<std::optional<ArrivedChunk>> chunks_;
  uint64_t taken_ = 0;
  uint64_t told_ = 0;
};

struct RingPlan {
  int slots = 0;
  size_t slot_bytes = 0;
};

// The wanted ring if those of `peers`, in both directions, fit into `bytes_max`; otherwise one with
// smaller slots, then fewer. ResourceExhausted when even 2 slots of 4 KiB do not fit.
absl::StatusOr<RingPlan> PlanRing(int slots, size_t slot_bytes, int peers, size_t bytes_max);

}  // namespace dtrain::comm
