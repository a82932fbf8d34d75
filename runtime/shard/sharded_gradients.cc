#include "runtime/shard/sharded_gradients.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status.h"
#include "runtime/shard/shard_sums.h"

namespace dtrain {

ShardedGradients::ShardedGradients(comm::Group& group, FlatParameters& flat,
                                   const plan::ShardPlan& shards, comm::Wire wire,
                                   std::vector<int> order)
    : group_(group),
      flat_(flat),
      shards_(shards),
      wire_(wire),
      queue_(shards.spans(), std::move(order)),
      filled_(flat.parameters().size(), 0) {}

ShardedGradients::~ShardedGradients() {
  hooks_.reset();
  Drain().IgnoreError();
}

absl::StatusOr<std::unique_ptr<ShardedGradients>> ShardedGradients::Create(
    comm::Group& group, FlatParameters& flat, const plan::ShardPlan& shards, comm::Wire wire) {
  DT_ASSIGN_OR_RETURN(std::vector<int> order, shards.LaunchOrder({}));
  auto sync = std::unique_ptr<ShardedGradients>(
      new ShardedGradients(group, flat, shards, wire, std::move(order)));
  DT_ASSIGN_OR_RETURN(sync->registration_, group.Register(flat.gradient_memory()));
  sync->hooks_ = std::make_unique<GradientHooks>(flat, *sync);
  return sync;
}

void ShardedGradients::BeginMicroBatch(int64_t /*step*/, bool last) {
  last_ = last;
  if (last) {
    queue_.Arm();
    readiness_order_.clear();
  }
}

void ShardedGradients::OnGradient(size_t index) {
  if (filled_[index] == 0) {
    at::Tensor& gradient = flat_.parameters()[index].mutable_grad();
    if (const absl::Status dense = CheckDense(flat_, index, gradient); !dense.ok()) {
      status_ = dense;
      return;
    }
    const at::Tensor& view = flat_.gradient_views()[index];
    CopyGradient(gradient, view);
    gradient = view;
    filled_[index] = 1;
  }
  if (last_ && !queue_.is_ready(index)) {
    readiness_order_.push_back(static_cast<int>(index));
    queue_.Ready(index, [this](int bucket) { Launch(bucket); });
  }
}

void ShardedGradients::Launch(int bucket) {
  if (!status_.ok()) {
    return;  // FinishBackward reports it; launching on would only hide it.
  }
  const plan::FlatRange range = shards_.buckets()[static_cast<size_t>(bucket)];
  const plan::FlatRange own = shards_.part(bucket, group_.rank()).flat;
  float* const data = flat_.gradients().mutable_data_ptr<float>();
  auto work = group_.ReduceScatter(
      Floats(data + range.begin, range.elements()), Floats(data + own.begin, own.elements()),
      comm::ReduceOp::kSum, {.name = BucketName("bucket", flat_, shards_, bucket), .wire = wire_});
  if (!work.ok()) {
    status_ = work.status();
    return;
  }
  works_.push_back(*std::move(work));
}

absl::Status ShardedGradients::FinishBackward() {
  if (!last_) {
    return status_;
  }
  for (size_t i = 0; i < filled_.size(); ++i) {
    if (filled_[i] == 0) {  // Unused in this step: the others may have used it.
      const at::Tensor& view = flat_.gradient_views()[i];
      std::memset(view.mutable_data_ptr(), 0, view.nbytes());
    }
  }
  queue_.ReadyAll([this](int bucket) { Launch(bucket); });
  return status_;
}

// All of them: buffers stay in use until done.
absl::Status ShardedGradients::Drain() {
  absl::Status first_error = status_;
  for (const comm::Work& work : works_) {
    first_error.Update(work.Wait());
  }
  works_.clear();
  return first_error;
}

absl::StatusOr<GradientSquares> ShardedGradients::Wait() {
  DT_RETURN_IF_ERROR(Drain());
  const float* const data = flat_.gradients().const_data_ptr<float>();
  double sum = 0;
  for (const plan::OwnedRange& owned : shards_.owned(group_.rank())) {
    sum += SquareSum(data + owned.flat.begin, owned.flat.begin, owned.flat.elements());
  }
  return GradientSquares{.sum = sum, .of_shard = true};
}

void ShardedGradients::Release() {
  Drain().IgnoreError();
  for (const at::Tensor& parameter : flat_.parameters()) {
    parameter.mutable_grad().reset();
  }
  std::fill(filled_.begin(), filled_.end(), uint8_t{0});
  last_ = false;
  status_ = absl::OkStatus();
}

absl::Status ShardedGradients::AdoptReadinessOrder() {
  DT_ASSIGN_OR_RETURN(const std::vector<int> ready,
                      RankZeroOrder(group_, readiness_order_, flat_.parameters().size()));
  DT_ASSIGN_OR_RETURN(std::vector<int> order, shards_.LaunchOrder(ready));
  queue_.UseOrder(std::move(order));
  order_adopted_ = true;
  return absl::OkStatus();
}

}  // namespace dtrain
