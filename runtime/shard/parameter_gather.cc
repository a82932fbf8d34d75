#include "runtime/shard/parameter_gather.h"

#include <cstddef>
#include <utility>

#include "base/status.h"
#include "runtime/gradients/shard_sums.h"
#include "runtime/model/torch_pool.h"
#include "runtime/shard/following_work.h"

namespace dtrain {

absl::StatusOr<std::unique_ptr<ParameterGather>> ParameterGather::Create(
    comm::Group& group, FlatParameters& flat, const plan::ShardPlan& shards) {
  auto gather = std::unique_ptr<ParameterGather>(
      new ParameterGather("values of bucket", group, flat, shards));
  DT_ASSIGN_OR_RETURN(gather->registration_, flat.RegisterValues(group));
  if (flat.value_view() != nullptr) {
    gather->pending_ = std::make_unique<PendingValues>(flat, shards);
  }
  return gather;
}

std::unique_ptr<ParameterGather> ParameterGather::OfGradients(comm::Group& group,
                                                              FlatParameters& flat,
                                                              const plan::ShardPlan& shards) {
  auto gather = std::unique_ptr<ParameterGather>(
      new ParameterGather("gradients of bucket", group, flat, shards));
  gather->pending_ = std::make_unique<PendingValues>(flat, shards);
  gather->updater_ = std::make_unique<Worker>(
      WorkerOptions{.name = "dtrain-update", .queue_capacity = shards.buckets().size() + 1});
  gather->updater_->Submit(ComputeAlone);
  return gather;
}

absl::StatusOr<comm::Work> ParameterGather::Gather(int bucket, std::byte* base, DType dtype,
                                                   comm::Device place) {
  const auto buffer = [&](const plan::FlatRange& part) {
    const size_t width = DTypeBytes(dtype);
    return comm::Buffer{base + static_cast<size_t>(part.begin) * width,
                        static_cast<size_t>(part.elements()) * width, dtype, place};
  };
  return group_.AllGather(buffer(shards_.part(bucket, group_.rank()).flat),
                          buffer(shards_.buckets()[static_cast<size_t>(bucket)]),
                          {.name = names_[static_cast<size_t>(bucket)]});
}

void ParameterGather::Start(int bucket) {
  if (!status_.ok()) {
    return;
  }
  auto work = Gather(bucket, flat_.values_of_collectives(), flat_.dtype(), flat_.device().place());
  if (!work.ok()) {
    status_ = work.status();
    return;
  }
  works_[static_cast<size_t>(bucket)] = *std::move(work);
}

void ParameterGather::StartGradients(int bucket, std::function<void()> update) {
  if (!status_.ok()) {
    return;
  }
  auto* const gradients = static_cast<std::byte*>(flat_.gradients().mutable_data_ptr());
  const auto work = Gather(bucket, gradients, DType::kFloat32, flat_.device().place());
  if (!work.ok()) {
    status_ = work.status();
    return;
  }
  works_[static_cast<size_t>(bucket)] = FollowWith(*work, *updater_, std::move(update));
}

absl::Status ParameterGather::End() {
  if (pending_ == nullptr || !status_.ok()) {
    return Wait();
  }
  return pending_->Expect(std::exchange(works_, std::vector<comm::Work>(works_.size())));
}

absl::Status ParameterGather::Wait() {
  absl::Status first_error = std::exchange(status_, absl::OkStatus());
  for (comm::Work& work : works_) {
    first_error.Update(std::exchange(work, comm::Work()).Wait());
  }
  if (pending_ != nullptr) {
    first_error.Update(pending_->Settle());
  }
  if (!first_error.ok() && updater_ != nullptr && !updater_->status().ok()) {
    return updater_->status();  // An exception: it says more.
  }
  return first_error;
}

absl::Status ParameterGather::status() const {
  return pending_ != nullptr ? pending_->status() : absl::OkStatus();
}

double ParameterGather::TakeWaitedSeconds() {
  return pending_ != nullptr ? pending_->TakeWaitedSeconds() : 0;
}

absl::Status ParameterGather::JoinStream(comm::DeviceGroup& group, comm::CudaStream* stream) {
  DT_RETURN_IF_ERROR(std::exchange(status_, absl::OkStatus()));
  works_.assign(works_.size(), comm::Work());  // Their errors are the group's.
  return group.JoinStream(stream);
}

}  // namespace dtrain
