#include "comm/compression/bucket_reduction.h"

#include <utility>

#include "comm/compression/int8_reduction.h"
#include "comm/compression/plain_reduction.h"
#include "comm/compression/power_sgd_reduction.h"

namespace dtrain::comm {
namespace {

// Does not compress the first `start_step` steps.
class DelayedReduction final : public BucketReduction {
 public:
  DelayedReduction(int64_t start_step, std::unique_ptr<BucketReduction> plain,
                   std::unique_ptr<BucketReduction> compressed)
      : start_step_(start_step),
        plain_(std::move(plain)),
        compressed_(std::move(compressed)),
        active_(plain_.get()) {}

  absl::Status Start(absl::Span<float> data, int64_t step) override {
    active_ = step <= start_step_ ? plain_.get() : compressed_.get();
    return active_->Start(data, step);
  }
  absl::StatusOr<bool> Advance() override { return active_->Advance(); }
  double sum_of_squares() const override { return active_->sum_of_squares(); }
  void Drain() override { active_->Drain(); }

 private:
  const int64_t start_step_;
  const std::unique_ptr<BucketReduction> plain_;
  const std::unique_ptr<BucketReduction> compressed_;
  BucketReduction* active_;
};

}  // namespace

std::unique_ptr<BucketReduction> CreateBucketReduction(Group& group, const BucketShape& shape,
                                                       const CompressionOptions& options) {
  auto plain = std::make_unique<PlainReduction>(group, shape.name, options.wire);
  if (options.kind == Compression::kNone || group.size() == 1 ||
      shape.elements < options.elements_min) {
    return plain;
  }
  std::unique_ptr<BucketReduction> compressed;
  if (options.kind == Compression::kPowerSgd) {
    compressed = std::make_unique<PowerSgdReduction>(group, shape, options);
  } else {
    compressed = std::make_unique<Int8Reduction>(group, shape, options);
  }
  return std::make_unique<DelayedReduction>(options.start_step, std::move(plain),
                                            std::move(compressed));
}

}  // namespace dtrain::comm
