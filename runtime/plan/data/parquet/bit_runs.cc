#include "runtime/plan/data/parquet/bit_runs.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "runtime/plan/data/parquet/varint.h"

namespace dtrain::plan::parquet {
namespace {

absl::Status TooShort() { return absl::InvalidArgumentError("its values end too early"); }

absl::StatusOr<uint64_t> TakeNumber(absl::string_view* bytes) {
  absl::StatusOr<uint64_t> number = TakeVarint(bytes);
  if (absl::IsOutOfRange(number.status())) {
    return TooShort();
  }
  return number;
}

}  // namespace

uint64_t BitsAt(absl::string_view bytes, uint64_t bit, int width) {
  const uint64_t begin = bit / 8;
  if (width == 0 || begin >= bytes.size()) {
    return 0;
  }
  uint64_t word = 0;
  std::memcpy(&word, bytes.data() + begin, std::min<size_t>(sizeof(word), bytes.size() - begin));
  const int shift = static_cast<int>(bit % 8);
  uint64_t value = word >> shift;
  if (shift + width > 64 && begin + 8 < bytes.size()) {
    value |= uint64_t{static_cast<uint8_t>(bytes[begin + 8])} << (64 - shift);
  }
  return width == 64 ? value : value & ((uint64_t{1} << width) - 1);
}

absl::Status RunDecoder::NextRun() {
  while (run_left_ == 0) {  // A run may be empty.
    DT_ASSIGN_OR_RETURN(const uint64_t head, TakeNumber(&left_));
    is_packed_ = (head & 1) != 0;
    if (!is_packed_) {
      const auto bytes = static_cast<size_t>((width_ + 7) / 8);
      if (bytes > left_.size()) {
        return TooShort();
      }
      value_ = static_cast<uint32_t>(BitsAt(left_, 0, 8 * static_cast<int>(bytes)));
      left_.remove_prefix(bytes);
      run_left_ = head >> 1;
      continue;
    }
    const uint64_t groups = head >> 1;  // Each is 8 values, in as many bytes as one has bits.
    const auto width = static_cast<uint64_t>(width_);
    if (width == 0) {
      run_left_ = std::min(groups, uint64_t{1} << 32) * 8;
      continue;
    }
    // The last run may be cut behind its last value.
    const size_t bytes = groups > left_.size() / width ? left_.size() : groups * width;
    packed_ = left_.substr(0, bytes);
    left_.remove_prefix(bytes);
    run_left_ = bytes * 8 / width;
    bit_ = 0;
  }
  return absl::OkStatus();
}

absl::StatusOr<DeltaDecoder> DeltaDecoder::Open(absl::string_view bytes) {
  constexpr uint64_t kBlockMax = 1 << 20;
  DeltaDecoder decoder;
  decoder.left_ = bytes;
  DT_ASSIGN_OR_RETURN(const uint64_t block, TakeNumber(&decoder.left_));
  DT_ASSIGN_OR_RETURN(const uint64_t minis, TakeNumber(&decoder.left_));
  DT_ASSIGN_OR_RETURN(const uint64_t count, TakeNumber(&decoder.left_));
  DT_ASSIGN_OR_RETURN(const uint64_t first, TakeNumber(&decoder.left_));
  if (block == 0 || block > kBlockMax || minis == 0 || minis > block || block % minis != 0 ||
      block / minis % 8 != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "its differences are in blocks of %d values with %d parts, which cannot be", block, minis));
  }
  if (count > uint64_t{1} << 40) {
    return absl::InvalidArgumentError(
        absl::StrFormat("it has %d differences, which cannot be", count));
  }
  decoder.count_ = static_cast<int64_t>(count);
  decoder.value_ = (first >> 1) ^ (~(first & 1) + 1);
  decoder.values_each_ = static_cast<int64_t>(block / minis);
  decoder.minis_each_ = minis;
  return decoder;
}

absl::Status DeltaDecoder::NextMiniBlock() {
  if (widths_.empty()) {
    DT_ASSIGN_OR_RETURN(const uint64_t least, TakeNumber(&left_));
    least_ = (least >> 1) ^ (~(least & 1) + 1);
    if (left_.size() < minis_each_) {
      return TooShort();
    }
    widths_ = left_.substr(0, minis_each_);
    left_.remove_prefix(minis_each_);
  }
  width_ = static_cast<uint8_t>(widths_.front());
  widths_.remove_prefix(1);
  if (width_ > 64) {
    return absl::InvalidArgumentError(
        absl::StrFormat("its differences have %d bits, more than 64", width_));
  }
  const auto bytes = static_cast<size_t>(width_ * values_each_ / 8);
  if (bytes > left_.size()) {
    return TooShort();
  }
  packed_ = left_.substr(0, bytes);
  left_.remove_prefix(bytes);
  mini_left_ = values_each_;
  bit_ = 0;
  return absl::OkStatus();
}

absl::StatusOr<int64_t> DeltaDecoder::Next() {
  if (given_ == count_) {
    return TooShort();
  }
  if (given_++ == 0) {
    return static_cast<int64_t>(value_);
  }
  if (mini_left_ == 0) {
    DT_RETURN_IF_ERROR(NextMiniBlock());
  }
  --mini_left_;
  value_ += least_ + BitsAt(packed_, bit_, width_);
  bit_ += static_cast<uint64_t>(width_);
  return static_cast<int64_t>(value_);
}

absl::StatusOr<absl::string_view> DeltaDecoder::Behind() const {
  DeltaDecoder rest = *this;
  int64_t to_come = count_ - std::max<int64_t>(1, given_) - mini_left_;
  while (to_come > 0) {
    DT_RETURN_IF_ERROR(rest.NextMiniBlock());
    to_come -= values_each_;
  }
  return rest.left_;
}

}  // namespace dtrain::plan::parquet
