#include "runtime/shard/parameter_gather.h"

#include <utility>

#include "base/status.h"
#include "runtime/shard/shard_sums.h"

namespace dtrain {

absl::StatusOr<std::unique_ptr<ParameterGather>> ParameterGather::Create(
    comm::Group& group, FlatParameters& flat, const plan::ShardPlan& shards) {
  auto gather = std::unique_ptr<ParameterGather>(new ParameterGather(group, flat, shards));
  DT_ASSIGN_OR_RETURN(gather->registration_, group.Register(flat.value_memory()));
  return gather;
}

void ParameterGather::Start(int bucket) {
  if (!status_.ok()) {
    return;
  }
  const plan::FlatRange range = shards_.buckets()[static_cast<size_t>(bucket)];
  const plan::FlatRange own = shards_.part(bucket, group_.rank()).flat;
  float* const values = flat_.values().mutable_data_ptr<float>();
  auto work = group_.AllGather(Floats(values + own.begin, own.elements()),
                               Floats(values + range.begin, range.elements()),
                               {.name = names_[static_cast<size_t>(bucket)]});
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

}  // namespace dtrain
