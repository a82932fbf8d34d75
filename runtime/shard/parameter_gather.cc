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
    return comm::Buffer{static_cast<std::byte*>(flat_.values().mutable_data_ptr()) +
                            static_cast<size_t>(part.begin) * width,
                        static_cast<size_t>(part.elements()) * width, flat_.dtype(),
                        flat_.device().place()};
  };
  auto work =
      group_.AllGather(buffer(own), buffer(range), {.name = names_[static_cast<size_t>(bucket)]});
  if (!work.ok()) {
    status_ = work.status();
    return;
  }
  works_.push_back(*std::move(work));
}

absl::Status ParameterGather::Wait() {
  absl::Status first_error = std::exchange(status_, absl::OkStatus());
  for (const comm::Work& work : works_) {
    first_error.Update(work.Wait());
  }
  works_.clear();
  return first_error;
}

absl::Status ParameterGather::JoinStream(comm::DeviceGroup& group, comm::CudaStream* stream) {
  DT_RETURN_IF_ERROR(std::exchange(status_, absl::OkStatus()));
  works_.clear();  // Their errors are the group's.
  return group.JoinStream(stream);
}

}  // namespace dtrain
