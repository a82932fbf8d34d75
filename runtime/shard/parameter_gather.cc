#include "runtime/shard/parameter_gather.h"

#include <cstddef>
#include <utility>

#include "base/numeric/dtype.h"
#include "base/status.h"
#include "runtime/gradients/bucket_parts.h"

namespace dtrain {

ParameterGather::ParameterGather(comm::Group& group, FlatParameters& flat,
                                 const plan::ShardPlan& shards)
    : group_(group),
      flat_(flat),
      shards_(shards),
      names_(BucketNames("values of bucket", flat, shards)),
      works_(shards.buckets().size()) {}

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
  const auto buffer = [this](const plan::FlatRange& part) {
    const size_t width = DTypeBytes(flat_.dtype());
    return comm::Buffer{flat_.value_bytes() + static_cast<size_t>(part.begin) * width,
                        static_cast<size_t>(part.elements()) * width, flat_.dtype(),
                        flat_.device().place()};
  };
  const auto place = static_cast<size_t>(bucket);
  auto work = group_.AllGather(buffer(shards_.part(bucket, group_.rank()).flat),
                               buffer(shards_.buckets()[place]), {.name = names_[place]});
  if (!work.ok()) {
    status_ = work.status();
    return;
  }
  works_[place] = *std::move(work);
}

absl::Status ParameterGather::Wait() {
  absl::Status first_error = std::exchange(status_, absl::OkStatus());
  for (comm::Work& work : works_) {
    first_error.Update(std::exchange(work, comm::Work()).Wait());
  }
  return first_error;
}

absl::Status ParameterGather::JoinStream(comm::DeviceGroup& group, comm::CudaStream* stream) {
  DT_RETURN_IF_ERROR(std::exchange(status_, absl::OkStatus()));
  works_.assign(works_.size(), comm::Work());  // The group reports their errors.
  return group.JoinStream(stream);
}

}  // namespace dtrain
