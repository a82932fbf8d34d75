#include "runtime/shard/sharded_gradients.h"

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
      names_(BucketNames("bucket", flat, shards)),
      own_(shards.owned(group.rank())),
      whole_(flat),
      queue_(shards.spans(), std::move(order)) {}

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
  }
}

void ShardedGradients::OnGradient(size_t index) {
  absl::Status taken = whole_.Take(index);
  if (last_) {
    taken.Update(CheckNotLaunched(flat_, index, queue_));
  }
  if (!taken.ok()) {
    status_.Update(taken);
    return;
  }
  if (last_) {
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
  auto work = group_.ReduceScatter(Floats(data + range.begin, range.elements()),
                                   Floats(data + own.begin, own.elements()), comm::ReduceOp::kSum,
                                   {.name = names_[static_cast<size_t>(bucket)], .wire = wire_});
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
  whole_.ZeroUnused();
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
  for (const plan::OwnedRange& owned : own_) {
    sum += SquareSum(data + owned.flat.begin, owned.flat.begin, owned.flat.elements());
  }
  return GradientSquares{.sum = sum, .of_shard = true};
}

void ShardedGradients::Release() {
  Drain().IgnoreError();
  whole_.Release();
  last_ = false;
  status_ = absl::OkStatus();
}

absl::Status ShardedGradients::UseReadinessOrder(const std::vector<int>& order) {
  DT_ASSIGN_OR_RETURN(std::vector<int> launch_order, shards_.LaunchOrder(order));
  queue_.UseOrder(std::move(launch_order));
  return absl::OkStatus();
}

}  // namespace dtrain
