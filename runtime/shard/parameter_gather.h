// The all-gather that ends a step of ZeRO stages 1 and 2: every rank's updated part of the flat
// values, bucket by bucket, in place, while later buckets are still being updated.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/group.h"
#include "comm/nccl/device_group.h"
#include "runtime/engine/flat_parameters.h"
#include "runtime/plan/shard_plan.h"
#include "runtime/shard/shard_sums.h"

namespace dtrain {

class ParameterGather {
 public:
  // Collective. REQUIRES: all outlive this object; `flat` has symmetric values of the padded size.
  static absl::StatusOr<std::unique_ptr<ParameterGather>> Create(comm::Group& group,
                                                                 FlatParameters& flat,
                                                                 const plan::ShardPlan& shards);
  // Collective: this rank's part of the bucket is final. An error is given by Wait.
  void Start(int bucket);
  // Until all buckets started are whole.
  absl::Status Wait();
  // On a GPU: later work on `stream` waits for them, the host does not.
  absl::Status JoinStream(comm::DeviceGroup& group, comm::CudaStream* stream);

 private:
  ParameterGather(comm::Group& group, FlatParameters& flat, const plan::ShardPlan& shards)
      : group_(group),
        flat_(flat),
        shards_(shards),
        names_(BucketNames("values of bucket", flat, shards)) {}

  comm::Group& group_;
  FlatParameters& flat_;
  const plan::ShardPlan& shards_;
  const std::vector<std::string> names_;  // By bucket.
  std::unique_ptr<comm::Registration> registration_;
  std::vector<comm::Work> works_;
  absl::Status status_;
};

}  // namespace dtrain
