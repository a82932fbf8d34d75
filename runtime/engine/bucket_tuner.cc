#include "runtime/engine/bucket_tuner.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/status.h"

namespace dtrain {
namespace {

// A plan is changed for nothing less: the estimate is no better than that.
constexpr double kWorthIt = 0.02;

}  // namespace

void BucketTuner::Merge(BucketSample sample) {
  for (double& ready : sample.ready_s) {
    ready = ready < 0 ? sample.backward_s : ready;
  }
  if (samples_++ == 0) {
    least_ = std::move(sample);
    return;
  }
  for (size_t i = 0; i < least_.ready_s.size(); ++i) {
    least_.ready_s[i] = std::min(least_.ready_s[i], sample.ready_s[i]);
  }
  for (size_t i = 0; i < least_.reductions.size(); ++i) {
    least_.reductions[i].second =
        std::min(least_.reductions[i].second, sample.reductions[i].second);
  }
  least_.backward_s = std::min(least_.backward_s, sample.backward_s);
  least_.reduced_s = std::min(least_.reduced_s, sample.reduced_s);
}

absl::Status BucketTuner::Agree() {
  std::vector<double> all = least_.ready_s;
  all.push_back(least_.backward_s);
  all.push_back(least_.reduced_s);
  for (const auto& reduction : least_.reductions) {
    all.push_back(-reduction.second);  // The largest of these is the least.
  }
  DT_ASSIGN_OR_RETURN(
      const comm::Work work,
      group_.AllReduce({all.data(), all.size() * sizeof(double), DType::kFloat64, {}},
                       comm::ReduceOp::kMax, {.name = "times of buckets", .caller_waits = true}));
  DT_RETURN_IF_ERROR(work.Wait());
  const size_t entries = least_.ready_s.size();
  std::copy_n(all.begin(), entries, least_.ready_s.begin());
  least_.backward_s = all[entries];
  least_.reduced_s = all[entries + 1];
  for (size_t i = 0; i < least_.reductions.size(); ++i) {
    least_.reductions[i].second = -all[entries + 2 + i];
  }
  return absl::OkStatus();
}

absl::Status BucketTuner::Choose(const plan::ParamLayout& layout, absl::Span<const int> readiness) {
  const plan::BackwardTimes times{.ready_s = least_.ready_s,
                                  .end_s = least_.backward_s,
                                  .cost = plan::FitReductionCost(least_.reductions)};
  DT_ASSIGN_OR_RETURN(const plan::TunedBuckets tuned,
                      plan::TuneBuckets(layout, readiness, times, bounds_));
  const bool worth_it = tuned.reduced_s < (1 - kWorthIt) * tuned.present_reduced_s;
  int64_t chosen = worth_it ? tuned.bucket_elements : bounds_.present;
  DT_ASSIGN_OR_RETURN(const comm::Work work,
                      group_.Broadcast({&chosen, sizeof(chosen), DType::kInt64, {}}, 0,
                                       {.name = "size of buckets", .caller_waits = true}));
  DT_RETURN_IF_ERROR(work.Wait());
  present_reduced_s_ = least_.reduced_s;
  size_ = chosen;
  phase_ = chosen == bounds_.present ? Phase::kDone : Phase::kFirstOfOther;
  return absl::OkStatus();
}

void BucketTuner::Compare() {
  const int64_t other = size_;
  size_ = least_.reduced_s < present_reduced_s_ ? other : bounds_.present;
  phase_ = Phase::kDone;
  if (group_.rank() == 0) {
    DT_LOG(Info) << absl::StrFormat(
        "gradient buckets of at most %d elements: reduced %.1f ms after backward began, %.1f ms "
        "with at most %d",
        size_, 1e3 * (size_ == other ? least_.reduced_s : present_reduced_s_),
        1e3 * (size_ == other ? present_reduced_s_ : least_.reduced_s),
        size_ == other ? bounds_.present : other);
  }
}

absl::StatusOr<int64_t> BucketTuner::AfterStep(BucketSample sample, const plan::ParamLayout& layout,
                                               absl::Span<const int> readiness) {
  if (phase_ == Phase::kFirstOfOther) {  // Its memory and queues are new.
    phase_ = Phase::kOther;
    samples_ = 0;
    return size_;
  }
  Merge(std::move(sample));
  if (samples_ < kSamples) {
    return size_;
  }
  DT_RETURN_IF_ERROR(Agree());
  if (phase_ == Phase::kPresent) {
    DT_RETURN_IF_ERROR(Choose(layout, readiness));
  } else {
    Compare();
  }
  return size_;
}

}  // namespace dtrain
