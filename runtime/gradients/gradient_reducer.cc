#include "runtime/gradients/gradient_reducer.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/status.h"
#include "runtime/gradients/bucket_parts.h"

namespace dtrain {
namespace {

// Its name in reports and timelines.
std::string BucketName(int index, const plan::Bucket& bucket, const plan::ParamLayout& layout) {
  const std::string& first = layout.entries()[static_cast<size_t>(bucket.first_entry)].name;
  const int more = bucket.last_entry - bucket.first_entry - 1;
  return more == 0 ? absl::StrFormat("bucket %d (%s)", index, first)
                   : absl::StrFormat("bucket %d (%s and %d more)", index, first, more);
}

}  // namespace

GradientReducer::GradientReducer(comm::Group& group, FlatParameters& flat, ReducerOptions options)
    : group_(group),
      flat_(flat),
      options_(options),
      collector_(
          flat, [this](int place) { return Launch(place); },
          [this](size_t index) { NoteGradient(index); }),
      cut_{.bucket_elements = options.bucket_elements} {
  if (options.bucket_elements_max > 0 && group.size() > 1) {
    tuner_ = std::make_unique<BucketTuner>(
        group, plan::BoundsOfTuning(options.bucket_elements_max, options.bucket_elements));
  }
}

GradientReducer::~GradientReducer() {
  collector_.StopListening();
  Drain();
}

absl::StatusOr<std::unique_ptr<GradientReducer>> GradientReducer::Create(comm::Group& group,
                                                                         FlatParameters& flat,
                                                                         ReducerOptions options) {
  auto reducer = std::unique_ptr<GradientReducer>(new GradientReducer(group, flat, options));
  DT_ASSIGN_OR_RETURN(const auto plan, plan::BucketPlan::Create(flat.layout(), reducer->cut_));
  reducer->UsePlan(plan);
  DT_ASSIGN_OR_RETURN(reducer->registration_, group.Register(flat.gradient_memory()));
  reducer->collector_.Listen();
  return reducer;
}

void GradientReducer::UsePlan(const plan::BucketPlan& plan) {
  buckets_.clear();
  std::vector<plan::BucketSpan> spans(flat_.parameters().size());
  for (const int index : plan.launch_order()) {
    BucketState state;
    state.bucket = plan.buckets()[static_cast<size_t>(index)];
    state.reduction =
        comm::CreateBucketReduction(group_,
                                    ShapeOf(BucketName(index, state.bucket, flat_.layout()),
                                            {state.bucket.begin, state.bucket.end}, flat_.layout()),
                                    options_.compression);
    const int place = static_cast<int>(buckets_.size());
    std::fill(spans.begin() + state.bucket.first_entry, spans.begin() + state.bucket.last_entry,
              plan::BucketSpan{place, place + 1});
    buckets_.push_back(std::move(state));
  }
  std::vector<int> in_turn(buckets_.size());
  std::iota(in_turn.begin(), in_turn.end(), 0);
  collector_.UseQueue(plan::LaunchQueue(std::move(spans), std::move(in_turn)));
}

void GradientReducer::BeginMicroBatch(int64_t step, bool last) {
  collector_.Begin(last);
  step_ = step;
  if (measures()) {
    sample_.ready_s.assign(flat_.parameters().size(), -1);
    backward_nanos_ = Clock::Real().MonotonicNanos();
  }
}

double GradientReducer::SinceBackward() const {
  return static_cast<double>(Clock::Real().MonotonicNanos() - backward_nanos_) * 1e-9;
}

void GradientReducer::NoteGradient(size_t index) {
  if (measures()) {
    sample_.ready_s[index] = SinceBackward();
  }
}

absl::Status GradientReducer::Launch(int place) {
  BucketState& state = buckets_[static_cast<size_t>(place)];
  const plan::Bucket& bucket = state.bucket;
  float* const begin = flat_.gradients().mutable_data_ptr<float>() + bucket.begin;
  DT_RETURN_IF_ERROR(
      state.reduction->Start(absl::MakeSpan(begin, static_cast<size_t>(bucket.elements())), step_));
  state.launched = true;
  return absl::OkStatus();
}

absl::Status GradientReducer::FinishBackward() {
  sample_.backward_s = measures() ? SinceBackward() : 0;
  return collector_.Finish();
}

absl::Status GradientReducer::FinishReductions() {
  std::vector<comm::BucketReduction*> reductions;
  for (const BucketState& state : buckets_) {
    reductions.push_back(state.reduction.get());
  }
  return comm::AdvanceToEnd(std::move(reductions));
}

absl::StatusOr<GradientSquares> GradientReducer::Wait() {
  absl::Status status = collector_.status();
  if (status.ok()) {
    status = FinishReductions();
  }
  if (!status.ok()) {
    Drain();  // All of them: buffers stay in use until done.
    return status;
  }
  sample_.reduced_s = measures() ? SinceBackward() : 0;
  sample_.reductions.clear();
  double sum_of_squares = 0;
  for (BucketState& state : buckets_) {
    sum_of_squares += state.reduction->sum_of_squares();
    state.launched = false;
    if (measures()) {
      sample_.reductions.emplace_back(state.bucket.elements(),
                                      static_cast<double>(state.reduction->DurationNanos()) * 1e-9);
    }
  }
  return GradientSquares{.sum = sum_of_squares};
}

// Reductions under way use the buckets' memory; after an abort they end at once.
void GradientReducer::Drain() {
  for (BucketState& state : buckets_) {
    if (state.launched) {
      state.reduction->Drain();
      state.launched = false;
    }
  }
}

void GradientReducer::Release() {
  Drain();
  collector_.Release();
}

absl::Status GradientReducer::UseReadinessOrder(const std::vector<int>& order) {
  readiness_ = order;
  DT_ASSIGN_OR_RETURN(const auto plan, plan::BucketPlan::Create(flat_.layout(), cut_, order));
  UsePlan(plan);
  return absl::OkStatus();
}

absl::Status GradientReducer::Tune() {
  if (tuner_ == nullptr) {
    return absl::OkStatus();
  }
  DT_ASSIGN_OR_RETURN(const plan::BucketOptions cut,
                      tuner_->AfterStep(std::move(sample_), flat_.layout(), readiness_));
  sample_ = BucketSample();
  if (tuner_->done()) {
    tuner_.reset();
  }
  if (cut == cut_) {
    return absl::OkStatus();
  }
  cut_ = cut;
  return UseReadinessOrder(readiness_);
}

}  // namespace dtrain
