#include "runtime/gradients/sharded_gradients.h"

#include <utility>

#include "base/status.h"
#include "runtime/gradients/bucket_shape.h"
#include "runtime/gradients/shard_sums.h"

namespace dtrain {

ShardedGradients::ShardedGradients(comm::Group& group, FlatParameters& flat,
                                   const plan::ShardPlan& shards,
                                   const comm::CompressionOptions& compression, LaunchShare whole)
    : group_(group),
      flat_(flat),
      shards_(shards),
      wire_(compression.wire),
      whole_share_(whole),
      names_(BucketNames("bucket", flat, shards)),
      own_(shards.owned(group.rank())),
      whole_(flat, [this](size_t index) { OnGradient(index); }) {
  for (size_t i = 0; compression.kind != comm::Compression::kNone && i < names_.size(); ++i) {
    reductions_.push_back(comm::CreateBucketReduction(
        group, ShapeOf(names_[i], shards.buckets()[i], flat.layout()), compression));
  }
}

ShardedGradients::~ShardedGradients() {
  hooks_.reset();
  Drain().IgnoreError();
}

absl::StatusOr<std::unique_ptr<ShardedGradients>> ShardedGradients::Create(
    comm::Group& group, FlatParameters& flat, const plan::ShardPlan& shards,
    const comm::CompressionOptions& compression, LaunchShare whole) {
  auto sync = std::unique_ptr<ShardedGradients>(
      new ShardedGradients(group, flat, shards, compression, whole));
  DT_RETURN_IF_ERROR(sync->UseLaunchOrder({}, {}));
  DT_ASSIGN_OR_RETURN(sync->registration_, group.Register(flat.gradient_memory()));
  sync->hooks_ = std::make_unique<GradientHooks>(flat, *sync);
  return sync;
}

void ShardedGradients::BeginMicroBatch(int64_t step, bool last) {
  status_.Update(whole_.BeginBackward());
  step_ = step;
  last_ = last;
  if (last) {
    queue_.Arm();
  }
}

void ShardedGradients::OnGradient(size_t index) {
  if (!whole_.in_step()) {
    return;
  }
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
  if (reductions_.empty()) {
    status_ = LaunchPlain(bucket);
    return;
  }
  const plan::FlatRange range = shards_.buckets()[static_cast<size_t>(bucket)];
  float* const begin = flat_.gradients().mutable_data_ptr<float>() + range.begin;
  comm::BucketReduction& reduction = *reductions_[static_cast<size_t>(bucket)];
  status_ = reduction.Start({begin, static_cast<size_t>(range.elements())}, step_);
  if (status_.ok()) {
    compressed_.push_back(&reduction);
  }
}

absl::Status ShardedGradients::LaunchPlain(int bucket) {
  const plan::FlatRange range = shards_.buckets()[static_cast<size_t>(bucket)];
  const plan::FlatRange own = shards_.part(bucket, group_.rank()).flat;
  float* const data = flat_.gradients().mutable_data_ptr<float>();
  const comm::Buffer all = Floats(data + range.begin, range.elements());
  const comm::CollectiveOptions options{.name = names_[static_cast<size_t>(bucket)], .wire = wire_};
  auto work = is_whole(bucket) ? group_.AllReduce(all, comm::ReduceOp::kSum, options)
                               : group_.ReduceScatter(all, Floats(data + own.begin, own.elements()),
                                                      comm::ReduceOp::kSum, options);
  DT_RETURN_IF_ERROR(work.status());
  works_.push_back(*std::move(work));
  return absl::OkStatus();
}

absl::Status ShardedGradients::FinishBackward() {
  status_.Update(whole_.EndBackward());
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
  for (comm::BucketReduction* const reduction : std::exchange(compressed_, {})) {
    reduction->Drain();
  }
  return first_error;
}

absl::StatusOr<GradientSquares> ShardedGradients::Wait() {
  if (status_.ok()) {
    status_ = comm::AdvanceToEnd(compressed_);
  }
  if (status_.ok()) {
    compressed_.clear();
  }
  DT_RETURN_IF_ERROR(Drain());  // All of them, after an error too: buffers stay in use until done.
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

absl::Status ShardedGradients::UseReadinessOrder(const std::vector<int>& order,
                                                 const std::vector<int>& need) {
  return UseLaunchOrder(order, need);
}

absl::Status ShardedGradients::UseLaunchOrder(const std::vector<int>& readiness,
                                              const std::vector<int>& need) {
  DT_ASSIGN_OR_RETURN(std::vector<int> order, shards_.LaunchOrder(readiness, need));
  const auto total = static_cast<double>(shards_.padded_elements());
  whole_buckets_.assign(order.size(), 0);
  int64_t before = 0;
  for (const int bucket : order) {
    const double place = static_cast<double>(before) / total;
    whole_buckets_[static_cast<size_t>(bucket)] =
        static_cast<uint8_t>(place >= whole_share_.begin && place < whole_share_.end);
    before += shards_.buckets()[static_cast<size_t>(bucket)].elements();
  }
  queue_ = plan::LaunchQueue(shards_.spans(), std::move(order));
  return absl::OkStatus();
}

}  // namespace dtrain
