// A bucket summed as it is, in the wire's type. Used by one thread at a time.
#pragma once

#include "comm/compression/bucket_reduction.h"

namespace dtrain::comm {

class PlainReduction final : public BucketReduction {
 public:
  PlainReduction(Group& group, std::string name, Wire wire)
      : group_(group), name_(std::move(name)), wire_(wire) {}
  absl::Status Start(absl::Span<float> data, int64_t step) override;
  absl::StatusOr<bool> Advance() override;
  double sum_of_squares() const override { return sum_of_squares_; }
  int64_t DurationNanos() const override { return work_.DurationNanos(); }
  void Drain() override { work_.Wait().IgnoreError(); }

 private:
  Group& group_;
  const std::string name_;
  const Wire wire_;
  Work work_;
  double sum_of_squares_ = 0;
};

}  // namespace dtrain::comm
