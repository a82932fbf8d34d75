#include "comm/compression/int8_reduction.h"

#include <algorithm>
#include <cmath>

#include "base/status.h"
#include "comm/compression/int8_blocks.h"
#include "comm/compression/low_rank.h"

namespace dtrain::comm {
namespace {

size_t PartOf(size_t elements, size_t size) {
  const size_t part = (elements + size - 1) / size;
  return (part + kInt8Block - 1) / kInt8Block * kInt8Block;
}

Buffer Bytes(std::vector<uint8_t>& bytes, size_t start, size_t count) {
  return {bytes.data() + start, count, DType::kUInt8, {}};
}

}  // namespace

Int8Reduction::Int8Reduction(Group& group, const BucketShape& shape,
                             const CompressionOptions& options)
    : group_(group),
      name_(shape.name),
      error_feedback_(options.error_feedback),
      codec_(options.int8),
      size_(static_cast<size_t>(group.size())),
      part_(PartOf(shape.elements, size_)),
      values_(size_ * part_),
      sum_(part_),
      sent_(size_ * Int8Bytes(part_)),
      received_(size_ * Int8Bytes(part_)),
      scratch_(part_) {}

absl::Status Int8Reduction::Start(absl::Span<float> data, int64_t /*step*/) {
  data_ = data;
  gathering_ = false;
  AddTo(data.data(), data.size(), values_.data());
  const size_t bytes = Int8Bytes(part_);
  for (size_t rank = 0; rank < size_; ++rank) {
    float* const values = values_.data() + rank * part_;
    codec_.quantize(values, part_, sent_.data() + rank * bytes, values);
  }
  DT_ASSIGN_OR_RETURN(
      work_, group_.AllToAll(Bytes(sent_, 0, sent_.size()), Bytes(received_, 0, received_.size()),
                             {.name = name_}));
  return absl::OkStatus();
}

absl::StatusOr<bool> Int8Reduction::Advance() {
  DT_RETURN_IF_ERROR(work_.Wait());
  if (!gathering_) {
    gathering_ = true;
    DT_RETURN_IF_ERROR(SumPart());
    return false;
  }
  Finish();
  return true;
}

absl::Status Int8Reduction::SumPart() {
  const size_t bytes = Int8Bytes(part_);
  for (size_t rank = 0; rank < size_; ++rank) {
    codec_.dequantize(received_.data() + rank * bytes, part_, sum_.data(), /*add=*/true);
  }
  const size_t own = static_cast<size_t>(group_.rank()) * bytes;
  codec_.quantize(sum_.data(), part_, received_.data() + own, sum_.data());
  DT_ASSIGN_OR_RETURN(
      work_, group_.AllGather(Bytes(received_, own, bytes), Bytes(received_, 0, received_.size()),
                              {.name = name_}));
  return absl::OkStatus();
}

void Int8Reduction::Finish() {
  const size_t bytes = Int8Bytes(part_);
  for (size_t rank = 0; rank < size_; ++rank) {
    const size_t start = std::min(rank * part_, data_.size());
    const size_t count = std::min(part_, data_.size() - start);
    codec_.dequantize(received_.data() + rank * bytes, part_, scratch_.data(), /*add=*/false);
    std::copy_n(scratch_.data(), count, data_.data() + start);
  }
  sum_of_squares_ = SquareSum(data_.data(), data_.size());
  // A step that is not finite is skipped, and must leave nothing behind. The other ranks see the
  // same sum and do the same.
  if (!error_feedback_ || !std::isfinite(sum_of_squares_)) {
    std::fill(values_.begin(), values_.end(), 0.0F);
    std::fill(sum_.begin(), sum_.end(), 0.0F);
  }
}

}  // namespace dtrain::comm
