#include "runtime/gradients/device_gradients.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/optimizer/grad_norm.h"
#include "runtime/gradients/bucket_parts.h"
#include "runtime/plan/layout/bucket_plan.h"
#include "runtime/plan/layout/coalesced_buckets.h"

namespace dtrain {

DeviceGradients::DeviceGradients(const Device& device, comm::DeviceGroup& group,
                                 FlatParameters& flat, const DeviceGradientOptions& options)
    : device_(device),
      group_(group),
      flat_(flat),
      options_(options),
      collector_(flat, [this](int place) { return Launch(place); }) {}

DeviceGradients::~DeviceGradients() {
  collector_.StopListening();
  if (under_way_) {  // The group's stream may still use this memory.
    group_.JoinStream(device_.stream()).IgnoreError();
    device_.Synchronize().IgnoreError();
  }
}

absl::StatusOr<std::unique_ptr<DeviceGradients>> DeviceGradients::Create(
    const Device& device, comm::DeviceGroup& group, FlatParameters& flat,
    const DeviceGradientOptions& options) {
  auto made = std::unique_ptr<DeviceGradients>(new DeviceGradients(device, group, flat, options));
  // Enough for any boundaries: each cuts one block in two at most.
  const size_t cuts =
      flat.parameters().size() + (options.shards == nullptr ? 0 : options.shards->buckets().size());
  const int64_t blocks = kernels::NormBlocks(0, flat.gradients().numel());
  DT_ASSIGN_OR_RETURN(made->squares_,
                      DeviceSquares::Create(device, group, blocks + static_cast<int64_t>(cuts)));
  DT_RETURN_IF_ERROR(made->UseReadinessOrder({}));
  DT_ASSIGN_OR_RETURN(made->registration_, flat.RegisterGradients(group));
  made->collector_.Listen();
  return made;
}

absl::Status DeviceGradients::UseReadinessOrder(const std::vector<int>& order) {
  marks_.NextCut();
  return options_.shards == nullptr ? UseBuckets(order) : UseShards(order);
}

// Stage 0: boundaries follow the order.
absl::Status DeviceGradients::UseBuckets(const std::vector<int>& order) {
  const plan::ParamLayout& layout = flat_.layout();
  DT_ASSIGN_OR_RETURN(
      const auto plan,
      plan::BucketPlan::Create(layout, {.bucket_elements = options_.bucket_elements}, order));
  buckets_.clear();
  std::vector<plan::BucketSpan> spans(layout.entries().size());
  for (const int index : plan.launch_order()) {
    const plan::Bucket& bucket = plan.buckets()[static_cast<size_t>(index)];
    const int place = static_cast<int>(buckets_.size());
    const plan::FlatRange range{bucket.begin, bucket.end};
    buckets_.push_back(
        {.name = absl::StrCat("bucket ", index, " (",
                              layout.entries()[static_cast<size_t>(bucket.first_entry)].name, ")"),
         .range = range,
         .own = range});
    std::fill(spans.begin() + bucket.first_entry, spans.begin() + bucket.last_entry,
              plan::BucketSpan{place, place + 1});
  }
  std::vector<int> in_turn(buckets_.size());
  std::iota(in_turn.begin(), in_turn.end(), 0);
  collector_.UseQueue(plan::LaunchQueue(std::move(spans), std::move(in_turn)));
  PlaceRuns();
  return MakeCompression();
}

// Stage 1: the order alone.
absl::Status DeviceGradients::UseShards(const std::vector<int>& order) {
  DT_ASSIGN_OR_RETURN(std::vector<int> launch_order, options_.shards->LaunchOrder(order));
  ends_coalesced_ = plan::EndsOfCoalesced(options_.shards->spans(), launch_order);
  if (!buckets_.empty()) {
    collector_.queue().UseOrder(std::move(launch_order));
    return absl::OkStatus();
  }
  const std::vector<std::string> names = BucketNames("bucket", flat_, *options_.shards);
  for (size_t i = 0; i < options_.shards->buckets().size(); ++i) {
    buckets_.push_back({.name = names[i],
                        .range = options_.shards->buckets()[i],
                        .own = options_.shards->part(static_cast<int>(i), group_.rank()).flat});
  }
  collector_.UseQueue(plan::LaunchQueue(options_.shards->spans(), std::move(launch_order)));
  PlaceRuns();
  return MakeCompression();
}

absl::Status DeviceGradients::MakeCompression() {
  compression_.reset();  // Its memory before the next one's.
  if (options_.compression.kind == comm::Compression::kNone) {
    return absl::OkStatus();
  }
  std::vector<comm::BucketShape> shapes;
  for (const DeviceBucket& bucket : buckets_) {
    shapes.push_back(ShapeOf(bucket.name, bucket.range, flat_.layout()));
  }
  DT_ASSIGN_OR_RETURN(compression_,
                      DeviceCompression::Create(device_, group_, options_.compression, shapes));
  return absl::OkStatus();
}

void DeviceGradients::PlaceRuns() {
  const float* const data = flat_.gradients().const_data_ptr<float>();
  std::vector<DeviceSquares::Run> runs;
  if (options_.deterministic) {
    const int64_t total = flat_.layout().total_elements();
    const bool shared_out = options_.shards != nullptr;
    const std::vector<plan::OwnedRange> all = {{{0, total}, 0}};
    for (const plan::OwnedRange& owned : shared_out ? options_.shards->owned(group_.rank()) : all) {
      runs.push_back({data + owned.flat.begin, owned.flat.begin, owned.flat.elements()});
    }
    squares_->SetOrderedRuns(std::move(runs), kernels::NormBlocks(0, total), shared_out);
    return;
  }
  for (const DeviceBucket& bucket : buckets_) {
    runs.push_back({data + bucket.own.begin, bucket.own.begin, bucket.own.elements()});
  }
  squares_->SetRuns(std::move(runs), options_.shards != nullptr);
}

void DeviceGradients::BeginMicroBatch(int64_t step, bool last) {
  collector_.Begin(last);
  marks_.Clear();
  step_ = step;
}

absl::Status DeviceGradients::MakeMarks(BucketMarks& marks) const {
  return marks_.Reset(marks, device_, buckets_.size());
}

// It counts as the last backward of its step, so that buckets become full.
void DeviceGradients::BeginCaptured(BucketMarks& marks) {
  BeginMicroBatch(step_, /*last=*/true);
  marks_.BeginCaptured(marks);
}

void DeviceGradients::EndCaptured() {
  marks_.Clear();
  collector_.EndCaptured();
}

void DeviceGradients::BeginLaunched(int64_t step, bool last, const BucketMarks& marks) {
  BeginMicroBatch(step, last);
  marks_.BeginLaunched(marks);
}

comm::Buffer DeviceGradients::BufferOf(plan::FlatRange range) const {
  float* const data = flat_.gradients().mutable_data_ptr<float>() + range.begin;
  return {data, static_cast<size_t>(range.elements()) * sizeof(float), DType::kFloat32,
          device_.place()};
}

absl::Status DeviceGradients::Launch(int place) {
  const auto index = static_cast<size_t>(place);
  if (marks_.Record(index)) {
    return absl::OkStatus();
  }
  under_way_ = true;
  if (compression_ != nullptr && compression_->takes(index, step_)) {
    DT_RETURN_IF_ERROR(ReduceCoalesced());  // All ranks start their collectives in one order.
    float* const data = flat_.gradients().mutable_data_ptr<float>() + buckets_[index].range.begin;
    return compression_->Start(index, data);
  }
  if (options_.shards != nullptr) {
    coalesced_.push_back(index);
    return ends_coalesced_[index] != 0 ? ReduceCoalesced() : absl::OkStatus();
  }
  DT_RETURN_IF_ERROR(
      group_.AllReduce(BufferOf(buckets_[index].range), comm::ReduceOp::kSum, OptionsOf(index))
          .status());
  return squares_->QueueRun(index);
}

comm::CollectiveOptions DeviceGradients::OptionsOf(size_t index) const {
  return {.name = buckets_[index].name,
          .wire = options_.compression.wire,
          .after = marks_.after(index)};
}

// Works are not kept: errors are the group's, and the stream orders what follows.
absl::Status DeviceGradients::ReduceCoalesced() {
  if (coalesced_.empty()) {
    return absl::OkStatus();
  }
  const std::vector<size_t> places = std::exchange(coalesced_, {});
  std::vector<comm::ReduceScatterCall> calls;
  for (const size_t place : places) {
    const DeviceBucket& bucket = buckets_[place];
    calls.push_back({BufferOf(bucket.range), BufferOf(bucket.own), OptionsOf(place)});
  }
  DT_RETURN_IF_ERROR(group_.ReduceScatterCoalesced(calls, comm::ReduceOp::kSum));
  for (const size_t place : places) {
    DT_RETURN_IF_ERROR(squares_->QueueRun(place));
  }
  return absl::OkStatus();
}

absl::Status DeviceGradients::FinishBackward() {
  DT_RETURN_IF_ERROR(collector_.Finish());
  if (status_.ok() && compression_ != nullptr && compression_->has_started()) {
    status_ = FinishCompressed();
  }
  return status_;
}

absl::Status DeviceGradients::FinishCompressed() {
  DT_ASSIGN_OR_RETURN(const std::vector<size_t> places, compression_->Finish());
  for (const size_t place : places) {
    DT_RETURN_IF_ERROR(squares_->QueueRun(place));
  }
  return absl::OkStatus();
}

absl::Status DeviceGradients::QueueSquares(double* sum) {
  DT_RETURN_IF_ERROR(status());
  return squares_->Queue(sum);
}

int64_t DeviceGradients::bytes() const {
  return static_cast<int64_t>(flat_.gradients().nbytes()) + squares_->bytes() +
         (compression_ != nullptr ? compression_->bytes() : 0);
}

void DeviceGradients::Release() {
  if (under_way_) {
    group_.JoinStream(device_.stream()).IgnoreError();
    under_way_ = false;
  }
  coalesced_.clear();
  if (compression_ != nullptr) {
    compression_->Drop();
  }
  collector_.Release();
  marks_.Clear();
  status_ = absl::OkStatus();
}

}  // namespace dtrain
