// A bucket as int8 blocks: each rank sends every other its part, quantised; sums the parts it got
// in fp32, in rank order; quantises the sum; and all gather the sums. The rounding errors of this
// rank's gradient and of the sum that this rank makes are both kept and added in the next step.
// Used by one thread at a time.
#pragma once

#include <vector>

#include "comm/compression/bucket_reduction.h"

namespace dtrain::comm {

class Int8Reduction final : public BucketReduction {
 public:
  Int8Reduction(Group& group, const BucketShape& shape, const CompressionOptions& options);
  absl::Status Start(absl::Span<float> data, int64_t step) override;
  absl::StatusOr<bool> Advance() override;
  double sum_of_squares() const override { return sum_of_squares_; }
  void Drain() override { work_.Wait().IgnoreError(); }

 private:
  absl::Status SumPart();
  void Finish();

  Group& group_;
  const std::string name_;
  const bool error_feedback_;
  const Int8Codec codec_;
  const size_t size_;
  const size_t part_;  // Elements that a rank sums; a whole number of blocks.
  absl::Span<float> data_;
  Work work_;
  bool gathering_ = false;
  double sum_of_squares_ = 0;
  // [size x part]: the rounding errors and, while a step runs, the values to send.
  std::vector<float> values_;
  std::vector<float> sum_;  // [part]: the same for the sum that this rank makes.
  std::vector<uint8_t> sent_;
  std::vector<uint8_t> received_;
  std::vector<float> scratch_;  // [part].
};

}  // namespace dtrain::comm
