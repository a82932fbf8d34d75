#include "runtime/gradients/sharded_gradients.h"

#include <utility>

#include "base/status.h"
#include "runtime/gradients/bucket_parts.h"

namespace dtrain {

ShardedGradients::ShardedGradients(comm::Group& group, FlatParameters& flat,
                                   const plan::ShardPlan& shards,
                                   const comm::CompressionOptions& compression)
    : group_(group),
      flat_(flat),
      shards_(shards),
      wire_(compression.wire),
      names_(BucketNames("bucket", flat, shards)),
      own_(shards.owned(group.rank())),
      collector_(flat, [this](int bucket) { return Launch(bucket); }) {
  for (size_t i = 0; compression.kind != comm::Compression::kNone && i < names_.size(); ++i) {
    reductions_.push_back(comm::CreateBucketReduction(
        group, ShapeOf(names_[i], shards.buckets()[i], flat.layout()), compression));
  }
}

ShardedGradients::~ShardedGradients() {
  collector_.StopListening();
  Drain().IgnoreError();
}

absl::StatusOr<std::unique_ptr<ShardedGradients>> ShardedGradients::Create(
    comm::Group& group, FlatParameters& flat, const plan::ShardPlan& shards,
    const comm::CompressionOptions& compression) {
  auto sync =
      std::unique_ptr<ShardedGradients>(new ShardedGradients(group, flat, shards, compression));
  DT_RETURN_IF_ERROR(sync->UseReadinessOrder({}));
  DT_ASSIGN_OR_RETURN(sync->registration_, group.Register(flat.gradient_memory()));
  sync->collector_.Listen();
  return sync;
}

void ShardedGradients::BeginMicroBatch(int64_t step, bool last) {
  collector_.Begin(last);
  step_ = step;
}

absl::Status ShardedGradients::Launch(int bucket) {
  if (reductions_.empty()) {
    return LaunchPlain(bucket);
  }
  const plan::FlatRange range = shards_.buckets()[static_cast<size_t>(bucket)];
  float* const begin = flat_.gradients().mutable_data_ptr<float>() + range.begin;
  comm::BucketReduction& reduction = *reductions_[static_cast<size_t>(bucket)];
  DT_RETURN_IF_ERROR(reduction.Start({begin, static_cast<size_t>(range.elements())}, step_));
  compressed_.push_back(&reduction);
  return absl::OkStatus();
}

absl::Status ShardedGradients::LaunchPlain(int bucket) {
  const plan::FlatRange range = shards_.buckets()[static_cast<size_t>(bucket)];
  const plan::FlatRange own = shards_.part(bucket, group_.rank()).flat;
  float* const data = flat_.gradients().mutable_data_ptr<float>();
  DT_ASSIGN_OR_RETURN(
      comm::Work work,
      group_.ReduceScatter(Floats(data + range.begin, range.elements()),
                           Floats(data + own.begin, own.elements()), comm::ReduceOp::kSum,
                           {.name = names_[static_cast<size_t>(bucket)], .wire = wire_}));
  works_.push_back(std::move(work));
  return absl::OkStatus();
}

absl::Status ShardedGradients::Drain() {
  absl::Status first_error;
  for (const comm::Work& work : works_) {
    first_error.Update(work.Wait());
  }
  works_.clear();
  for (comm::BucketReduction* const reduction : std::exchange(compressed_, {})) {
    reduction->Drain();
  }
  return first_error;
}

absl::StatusOr<GradientSquares> ShardedGradients::Wait() {
  absl::Status status = collector_.status();
  if (status.ok()) {
    status = comm::AdvanceToEnd(compressed_);
  }
  if (status.ok()) {
    compressed_.clear();
  }
  status.Update(Drain());
  DT_RETURN_IF_ERROR(status);
  const float* const data = flat_.gradients().const_data_ptr<float>();
  double sum = 0;
  for (const plan::OwnedRange& owned : own_) {
    sum += SquareSum(data + owned.flat.begin, owned.flat.begin, owned.flat.elements());
  }
  return GradientSquares{.sum = sum, .of_shard = true};
}

void ShardedGradients::Release() {
  Drain().IgnoreError();
  collector_.Release();
}

absl::Status ShardedGradients::UseReadinessOrder(const std::vector<int>& order) {
  DT_ASSIGN_OR_RETURN(std::vector<int> launch_order, shards_.LaunchOrder(order));
  collector_.UseQueue(plan::LaunchQueue(shards_.spans(), std::move(launch_order)));
  return absl::OkStatus();
}

}  // namespace dtrain
