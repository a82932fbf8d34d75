#include "runtime/engine/gradient_reducer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace dtrain {
namespace {

// What reports and timelines call it.
std::string BucketName(int index, const plan::Bucket& bucket, const plan::ParamLayout& layout) {
  const std::string& first = layout.entries()[static_cast<size_t>(bucket.first_entry)].name;
  const int more = bucket.last_entry - bucket.first_entry - 1;
  return more == 0 ? absl::StrFormat("bucket %d (%s)", index, first)
                   : absl::StrFormat("bucket %d (%s and %d more)", index, first, more);
}

comm::BucketShape ShapeOf(int index, const plan::Bucket& bucket, const plan::ParamLayout& layout) {
  comm::BucketShape shape;
  shape.name = BucketName(index, bucket, layout);
  shape.elements = static_cast<size_t>(bucket.elements());
  for (int i = bucket.first_entry; i < bucket.last_entry; ++i) {
    const plan::LayoutEntry& entry = layout.entries()[static_cast<size_t>(i)];
    const int64_t rows = entry.shape.size() > 1 ? entry.shape[0] : entry.elements;
    shape.tensors.push_back(
        {.start = static_cast<size_t>(entry.offset - bucket.begin),
         .rows = static_cast<size_t>(rows),
         .columns = static_cast<size_t>(rows == 0 ? 0 : entry.elements / rows)});
  }
  return shape;
}

}  // namespace

GradientReducer::GradientReducer(comm::Group& group, FlatParameters& flat, ReducerOptions options)
    : group_(group), flat_(flat), options_(options) {}

GradientReducer::~GradientReducer() {
  hooks_.reset();
  Drain();
}

absl::StatusOr<std::unique_ptr<GradientReducer>> GradientReducer::Create(comm::Group& group,
                                                                         FlatParameters& flat,
                                                                         ReducerOptions options) {
  auto reducer = std::unique_ptr<GradientReducer>(new GradientReducer(group, flat, options));
  const size_t count = flat.parameters().size();
  reducer->filled_.assign(count, 0);
  reducer->ready_.assign(count, 0);
  reducer->readiness_order_.reserve(count);
  DT_ASSIGN_OR_RETURN(
      const auto plan,
      plan::BucketPlan::Create(flat.layout(), {.bucket_elements = options.bucket_elements}));
  reducer->UsePlan(plan);
  DT_ASSIGN_OR_RETURN(reducer->registration_, group.Register(flat.gradient_memory()));
  reducer->hooks_ = std::make_unique<GradientHooks>(flat, *reducer);
  return reducer;
}

void GradientReducer::UsePlan(const plan::BucketPlan& plan) {
  buckets_.clear();
  bucket_of_.assign(flat_.parameters().size(), 0);
  for (const int index : plan.launch_order()) {
    BucketState state;
    state.bucket = plan.buckets()[static_cast<size_t>(index)];
    state.reduction = comm::CreateBucketReduction(
        group_, ShapeOf(index, state.bucket, flat_.layout()), options_.compression);
    for (int entry = state.bucket.first_entry; entry < state.bucket.last_entry; ++entry) {
      bucket_of_[static_cast<size_t>(entry)] = static_cast<uint32_t>(buckets_.size());
    }
    buckets_.push_back(std::move(state));
  }
}

void GradientReducer::BeginMicroBatch(int64_t step, bool last) {
  step_ = step;
  last_ = last;
  if (!last) {
    return;
  }
  next_launch_ = 0;
  std::fill(ready_.begin(), ready_.end(), uint8_t{0});
  for (BucketState& state : buckets_) {
    state.pending = state.bucket.last_entry - state.bucket.first_entry;
    state.launched = false;
  }
  if (!order_adopted_) {
    readiness_order_.clear();
  }
}

void GradientReducer::OnGradient(size_t index) {
  if (filled_[index] == 0) {
    at::Tensor& gradient = flat_.parameters()[index].mutable_grad();
    const at::Tensor& view = flat_.gradient_views()[index];
    if (const absl::Status dense = CheckDense(flat_, index, gradient); !dense.ok()) {
      status_ = dense;
      return;
    }
    CopyGradient(gradient, view);
    gradient = view;
    filled_[index] = 1;
  }
  if (!last_ || ready_[index] != 0) {
    return;
  }
  ready_[index] = 1;
  if (!order_adopted_) {
    readiness_order_.push_back(static_cast<int>(index));
  }
  if (--buckets_[bucket_of_[index]].pending == 0) {
    LaunchReady();
  }
}

void GradientReducer::LaunchReady() {
  while (next_launch_ < buckets_.size() && buckets_[next_launch_].pending == 0) {
    Launch(buckets_[next_launch_++]);
  }
}

void GradientReducer::Launch(BucketState& state) {
  if (!status_.ok()) {
    return;  // FinishBackward reports it; launching on would only hide it.
  }
  const plan::Bucket& bucket = state.bucket;
  float* const begin = flat_.gradients().mutable_data_ptr<float>() + bucket.begin;
  status_ =
      state.reduction->Start(absl::MakeSpan(begin, static_cast<size_t>(bucket.elements())), step_);
  state.launched = status_.ok();
}

absl::Status GradientReducer::FinishBackward() {
  if (!last_) {
    return status_;
  }
  for (size_t i = 0; i < filled_.size(); ++i) {
    if (filled_[i] == 0) {  // Unused in this step: the others may have used it.
      const at::Tensor& view = flat_.gradient_views()[i];
      std::memset(view.mutable_data_ptr(), 0, view.nbytes());
    }
  }
  for (BucketState& state : buckets_) {
    state.pending = 0;
  }
  LaunchReady();
  return status_;
}

absl::Status GradientReducer::FinishReductions() {
  std::vector<BucketState*> open;
  for (BucketState& state : buckets_) {
    open.push_back(&state);
  }
  while (!open.empty()) {
    std::vector<BucketState*> further;
    for (BucketState* state : open) {
      DT_ASSIGN_OR_RETURN(const bool done, state->reduction->Advance());
      if (!done) {
        further.push_back(state);
      }
    }
    open = std::move(further);
  }
  return absl::OkStatus();
}

absl::StatusOr<GradientSquares> GradientReducer::Wait() {
  absl::Status status = status_;
  if (status.ok()) {
    status = FinishReductions();
  }
  if (!status.ok()) {
    Drain();  // All of them: buffers stay in use until done.
    return status;
  }
  double sum_of_squares = 0;
  for (BucketState& state : buckets_) {
    sum_of_squares += state.reduction->sum_of_squares();
    state.launched = false;
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
  for (const at::Tensor& parameter : flat_.parameters()) {
    parameter.mutable_grad().reset();
  }
  std::fill(filled_.begin(), filled_.end(), uint8_t{0});
  last_ = false;
  status_ = absl::OkStatus();
}

absl::Status GradientReducer::AdoptReadinessOrder() {
  DT_ASSIGN_OR_RETURN(const std::vector<int> order,
                      RankZeroOrder(group_, readiness_order_, flat_.parameters().size()));
  DT_ASSIGN_OR_RETURN(const auto plan,
                      plan::BucketPlan::Create(
                          flat_.layout(), {.bucket_elements = options_.bucket_elements}, order));
  UsePlan(plan);
  order_adopted_ = true;
  return absl::OkStatus();
}

}  // namespace dtrain
