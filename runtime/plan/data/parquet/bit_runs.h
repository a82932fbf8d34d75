// Two encodings of integers: runs of equal and of bit-packed values (RLE: levels, indices of
// dictionaries, truth values), and differences (DELTA_BINARY_PACKED), as Encodings.md of
// apache/parquet-format has them. Any bytes are safe. Not thread-safe; the bytes outlive these.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/status.h"

namespace dtrain::plan::parquet {

// The number of `width` (0 to 64) bits that begins at a bit, the lowest first. Bits behind the end
// are 0.
uint64_t BitsAt(absl::string_view bytes, uint64_t bit, int width);

class RunDecoder {
 public:
  RunDecoder() = default;
  // REQUIRES: `width` is 0 to 32.
  RunDecoder(absl::string_view bytes, int width) : left_(bytes), width_(width) {}

  // InvalidArgument: there are no more.
  absl::StatusOr<uint32_t> Next() {
    if (run_left_ == 0) {
      DT_RETURN_IF_ERROR(NextRun());
    }
    --run_left_;
    if (!is_packed_) {
      return value_;
    }
    const auto value = static_cast<uint32_t>(BitsAt(packed_, bit_, width_));
    bit_ += static_cast<uint64_t>(width_);
    return value;
  }

 private:
  absl::Status NextRun();

  absl::string_view left_;
  int width_ = 0;
  uint64_t run_left_ = 0;
  bool is_packed_ = false;
  uint32_t value_ = 0;        // In a run of equal values: the value.
  absl::string_view packed_;  // The values of a bit-packed run.
  uint64_t bit_ = 0;          // The next value begins there in `packed_`.
};

class DeltaDecoder {
 public:
  DeltaDecoder() = default;
  // InvalidArgument: the header is damaged.
  static absl::StatusOr<DeltaDecoder> Open(absl::string_view bytes);

  int64_t count() const { return count_; }
  // InvalidArgument: there are no more, or the bytes end.
  absl::StatusOr<int64_t> Next();
  // The bytes behind the last value. Takes as long as there are bytes, however many values they
  // stand for.
  absl::StatusOr<absl::string_view> Behind() const;

 private:
  absl::Status NextMiniBlock();

  absl::string_view left_;  // Behind the present miniblock.
  int64_t count_ = 0;
  int64_t given_ = 0;
  uint64_t value_ = 0;
  int64_t values_each_ = 0;   // In a miniblock.
  size_t minis_each_ = 0;     // In a block.
  uint64_t least_ = 0;        // The least difference of the block.
  absl::string_view widths_;  // For each miniblock of the block that is to come.
  absl::string_view packed_;  // The present miniblock.
  int width_ = 0;
  int64_t mini_left_ = 0;  // Values of it.
  uint64_t bit_ = 0;
};

}  // namespace dtrain::plan::parquet
