// The all-gather that ends a step of ZeRO stages 1 and 2: every rank's updated part of the flat
// values, bucket by bucket, in place, while later buckets are still being updated. Driven by the
// thread that trains.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/group.h"
#include "comm/nccl/device_group.h"
#include "runtime/model/flat_parameters.h"
#include "runtime/plan/layout/shard_plan.h"

namespace dtrain {

class ParameterGather {
 public:
  // Collective. REQUIRES: all outlive this object; `flat` has symmetric values of the padded size.
  static absl::StatusOr<std::unique_ptr<ParameterGather>> Create(comm::Group& group,
                                                                 FlatParameters& flat,
                                                                 const plan::ShardPlan& shards);
  // Collective: this rank's part of the bucket is final. Wait gives an error of it.
  void Start(int bucket);
  // Until all buckets started are whole. The first error since the last call.
  absl::Status Wait();
  // On a GPU: later work on `stream` waits for them, the host does not.
  absl::Status JoinStream(comm::DeviceGroup& group, comm::CudaStream* stream);

 private:
  ParameterGather(comm::Group& group, FlatParameters& flat, const plan::ShardPlan& shards);

  comm::Group& group_;
  FlatParameters& flat_;
  const plan::ShardPlan& shards_;
  const std::vector<std::string> names_;  // By bucket.
  std::unique_ptr<comm::Registration> registration_;
  std::vector<comm::Work> works_;  // By bucket.
  absl::Status status_;
};

}  // namespace dtrain
