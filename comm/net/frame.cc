#include "comm/net/frame.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status.h"

namespace dtrain::comm {
namespace {

// Payload memory is taken in steps as bytes arrive, so that an announced length costs nothing.
constexpr size_t kGrowBytes = 64U << 10;

template <typename T>
void Put(uint8_t* out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) {
    out[i] = static_cast<uint8_t>(value >> (8 * i));
  }
}
template <typename T>
T Take(const uint8_t* in) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | static_cast<T>(in[i]) << (8 * i));
  }
  return value;
}

}  // namespace

std::array<uint8_t, kFrameHeaderBytes> EncodeFrameHeader(const FrameHeader& header) {
  std::array<uint8_t, kFrameHeaderBytes> bytes{};
  Put(&bytes[0], header.length);
  Put(&bytes[4], header.type);
  Put(&bytes[8], header.sequence);
  Put(&bytes[16], header.epoch);
  return bytes;
}

FrameHeader DecodeFrameHeader(absl::Span<const uint8_t> bytes) {
  DT_CHECK_EQ(bytes.size(), kFrameHeaderBytes);
  return {Take<uint32_t>(&bytes[0]), Take<uint32_t>(&bytes[4]), Take<uint64_t>(&bytes[8]),
          Take<uint64_t>(&bytes[16])};
}

absl::Span<uint8_t> FrameReader::Space() {
  if (header_filled_ < kFrameHeaderBytes) {
    return absl::MakeSpan(header_bytes_).subspan(header_filled_);
  }
  if (payload_filled_ == payload_.size()) {
    const size_t more = std::max(kGrowBytes, payload_filled_);
    payload_.resize(std::min<size_t>(header_.length, payload_filled_ + more));
  }
  return {reinterpret_cast<uint8_t*>(payload_.data()) + payload_filled_,
          payload_.size() - payload_filled_};
}

absl::StatusOr<std::optional<Frame>> FrameReader::Commit(size_t bytes) {
  if (header_filled_ < kFrameHeaderBytes) {
    header_filled_ += bytes;
    if (header_filled_ < kFrameHeaderBytes) {
      return std::nullopt;
    }
    DT_RETURN_IF_ERROR(CheckHeader());
  } else {
    payload_filled_ += bytes;
  }
  if (payload_filled_ < header_.length) {
    return std::nullopt;
  }
  Frame frame{header_.type, header_.epoch, std::move(payload_)};
  payload_.clear();
  payload_filled_ = 0;
  header_filled_ = 0;
  return frame;
}

absl::Status FrameReader::CheckHeader() {
  header_ = DecodeFrameHeader(header_bytes_);
  if (header_.length > payload_bytes_max_) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "a frame announces %d bytes; allowed: at most %d", header_.length, payload_bytes_max_));
  }
  if (header_.sequence != next_sequence_) {
    return absl::InvalidArgumentError(absl::StrFormat("a frame has sequence number %d; expected %d",
                                                      header_.sequence, next_sequence_));
  }
  if (epoch_.has_value() && header_.epoch != *epoch_) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a frame is of epoch %d; this is epoch %d", header_.epoch, *epoch_));
  }
  ++next_sequence_;
  return absl::OkStatus();
}

}  // namespace dtrain::comm
