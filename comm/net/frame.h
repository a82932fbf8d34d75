// Frames of the control channel: {length, type, sequence, epoch} and a payload.
//
// All integers are little-endian. Each direction numbers its frames from 0. A wrong sequence, a
// wrong epoch or too long a payload is an error after which the connection must be closed. Not
// thread-safe. Fuzzed by tests/fuzz.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace dtrain::comm {

inline constexpr size_t kFrameHeaderBytes = 24;
inline constexpr uint32_t kFramePayloadBytesMax = 16U << 20;

struct FrameHeader {
  uint32_t length = 0;  // Bytes of the payload.
  uint32_t type = 0;
  uint64_t sequence = 0;
  uint64_t epoch = 0;
};
std::array<uint8_t, kFrameHeaderBytes> EncodeFrameHeader(const FrameHeader& header);
FrameHeader DecodeFrameHeader(absl::Span<const uint8_t> bytes);  // REQUIRES: kFrameHeaderBytes.

struct Frame {
  uint32_t type = 0;
  uint64_t epoch = 0;
  std::string payload;
};

// Puts frames together from pieces. Memory grows with the bytes that came, not with what a header
// announces.
class FrameReader {
 public:
  explicit FrameReader(uint32_t payload_bytes_max = kFramePayloadBytesMax)
      : payload_bytes_max_(payload_bytes_max) {}
  // From now on only frames of `epoch` are taken; before, any.
  void RequireEpoch(uint64_t epoch) { epoch_ = epoch; }
  void SetPayloadMax(uint32_t bytes) { payload_bytes_max_ = bytes; }
  // The memory for the next bytes; never empty, valid until Commit.
  absl::Span<uint8_t> Space();
  // Takes the first `bytes` of Space(). Gives a frame when it is whole.
  // REQUIRES: bytes <= Space().size().
  absl::StatusOr<std::optional<Frame>> Commit(size_t bytes);
  size_t buffered_bytes() const { return header_filled_ + payload_filled_; }

 private:
  absl::Status CheckHeader();

  uint32_t payload_bytes_max_;
  std::optional<uint64_t> epoch_;
  uint64_t next_sequence_ = 0;
  std::array<uint8_t, kFrameHeaderBytes> header_bytes_{};
  size_t header_filled_ = 0;
  FrameHeader header_;
  std::string payload_;
  size_t payload_filled_ = 0;
};

}  // namespace dtrain::comm
