// The identity of a request, in the 64 bits that its completion gives back. A plain value.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dtrain::comm {

struct RequestId {
  enum class Kind : uint8_t { kChunk, kCredit, kProbe, kReceive, kOffer, kPiece };
  Kind kind = Kind::kChunk;
  size_t peer = 0;  // Below 2^24.
  size_t pair = 0;  // Below 2^8.
  size_t slot = 0;  // Below 2^16.

  uint64_t Encode() const {
    return (static_cast<uint64_t>(kind) << 48) | (static_cast<uint64_t>(peer) << 24) |
           (static_cast<uint64_t>(pair) << 16) | static_cast<uint64_t>(slot);
  }
  static RequestId Decode(uint64_t bits) {
    return {static_cast<Kind>((bits >> 48) & 0xff), static_cast<size_t>((bits >> 24) & 0xffffff),
            static_cast<size_t>((bits >> 16) & 0xff), static_cast<size_t>(bits & 0xffff)};
  }
};

}  // namespace dtrain::comm
