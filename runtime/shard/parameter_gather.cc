#include "runtime/shard/parameter_gather.h"

#include <cstddef>
#include <utility>

#include "base/status.h"
#include "runtime/shard/shard_sums.h"

namespace dtrain {

absl::StatusOr<std::unique_ptr<ParameterGather>> ParameterGather::Create(
    comm::Group& group, FlatParameters& flat, const plan::ShardPlan& shards) {
  auto gather = std::unique_ptr<ParameterGather>(new ParameterGather(group, flat, shards));
  DT_ASSIGN_OR_RETURN(gather->registration_, flat.RegisterValues(group));
  if (flat.value_view() != nullptr) {
    gather->pending_ = std::make_unique<PendingValues>(flat, shards);
  }
  return gather;
}

void ParameterGather::Start(int bucket) {
  if (!status_.ok()) {
    return;
  }
  const plan::FlatRange range = shards_.buckets()[static_cast<size_t>(bucket)];
  const plan::FlatRange own = shards_.part(bucket, group_.rank()).flat;
  const auto buffer = [this](const plan::FlatRange& part) {
    const size_t width = DTypeBytes(flat_.dtype());
    return comm::Buffer{flat_.values_of_collectives() + static_cast<size_t>(part.begin) * width,
                        static_cast<size_t>(part.elements()) * width, flat_.dtype(),
                        flat_.device().place()};
  };
  auto work =
      group_.AllGather(buffer(own), buffer(range), {.name = names_[static_cast<size_t>(bucket)]});
  if (!work.ok()) {
    status_ = work.status();
    return;
  }
  works_[static_cast<size_t>(bucket)] = *std::move(work);
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
