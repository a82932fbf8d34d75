#include "runtime/gradients/bucket_tuner.h"

#include <algorithm>
#include <array>
#include <string>

#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/status.h"

namespace dtrain {
namespace {

// A plan is changed for nothing less: the estimate is no better than that.
constexpr double kWorthIt = 0.02;

std::string InWords(const plan::BucketOptions& options) {
  return options.rest_parts == 1
             ? absl::StrFormat("of at most %d elements", options.bucket_elements)
             : absl::StrFormat("of at most %d elements and 1/%d of the rest",
                               options.bucket_elements, options.rest_parts);
}

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
  const plan::BucketOptions& wish = worth_it ? tuned.options : options_;
  std::array<int64_t, 4> chosen = {wish.bucket_elements, wish.first_bucket_elements,
                                   wish.rest_parts, wish.last_bucket_elements};
  DT_ASSIGN_OR_RETURN(const comm::Work work,
                      group_.Broadcast({chosen.data(), sizeof(chosen), DType::kInt64, {}}, 0,
                                       {.name = "size of buckets", .caller_waits = true}));
  DT_RETURN_IF_ERROR(work.Wait());
  const plan::BucketOptions agreed{chosen[0], chosen[1], chosen[2], chosen[3]};
  present_reduced_s_ = least_.reduced_s;
  phase_ = agreed == options_ ? Phase::kDone : Phase::kFirstOfOther;
  options_ = agreed;
  return absl::OkStatus();
}

void BucketTuner::Compare() {
  const plan::BucketOptions present{.bucket_elements = bounds_.present};
  const plan::BucketOptions other = options_;
  const bool better = least_.reduced_s < present_reduced_s_;
  options_ = better ? other : present;
  phase_ = Phase::kDone;
  if (group_.rank() == 0) {
    DT_LOG(Info) << absl::StrFormat(
        "gradient buckets %s: reduced %.1f ms after backward began, %.1f ms with those %s",
        InWords(options_), 1e3 * (better ? least_.reduced_s : present_reduced_s_),
        1e3 * (better ? present_reduced_s_ : least_.reduced_s), InWords(better ? present : other));
  }
}

absl::StatusOr<plan::BucketOptions> BucketTuner::AfterStep(BucketSample sample,
                                                           const plan::ParamLayout& layout,
                                                           absl::Span<const int> readiness) {
  if (phase_ == Phase::kFirstOfOther) {  // Its memory and queues are new.
    phase_ = Phase::kOther;
    samples_ = 0;
    return options_;
  }
  Merge(std::move(sample));
  if (samples_ < kSamples) {
    return options_;
  }
  DT_RETURN_IF_ERROR(Agree());
  if (phase_ == Phase::kPresent) {
    DT_RETURN_IF_ERROR(Choose(layout, readiness));
  } else {
    Compare();
  }
  return options_;
}

}  // namespace dtrain
