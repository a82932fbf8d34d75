// The all-gather that ends a step of ZeRO stages 1 and 2: every rank's updated part of the flat
// values, bucket by bucket, in place, while later buckets are still being updated and, where the
// values are guarded, during the next forward. At stage 0 every rank updates everything, so what is
// gathered behind a step are the gradients, and each bucket's update follows in another thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/numeric/dtype.h"
#include "base/threads/worker.h"
#include "comm/group.h"
#include "comm/nccl/device_group.h"
#include "runtime/gradients/shard_sums.h"
#include "runtime/model/flat_parameters.h"
#include "runtime/plan/layout/shard_plan.h"
#include "runtime/shard/pending_values.h"

namespace dtrain {

class ParameterGather {
 public:
  // Collective. REQUIRES: all outlive this object; `flat` has symmetric or guarded values of the
  // padded size.
  static absl::StatusOr<std::unique_ptr<ParameterGather>> Create(comm::Group& group,
                                                                 FlatParameters& flat,
                                                                 const plan::ShardPlan& shards);
  // The same for gradients that were reduce-scattered (StartGradients). REQUIRES: guarded values,
  // gradients that somebody has registered.
  static std::unique_ptr<ParameterGather> OfGradients(comm::Group& group, FlatParameters& flat,
                                                      const plan::ShardPlan& shards);
  // Collective: this rank's part of the bucket is final. An error is given by Wait.
  void Start(int bucket);
  // Collective: this rank's part of the bucket's gradients is. Once all of them are here `update`
  // runs in a thread of this object's, in the order of these calls; it must write the values where
  // collectives do. The gradients must stay until Wait, or whoever reads the weights, has waited.
  void StartGradients(int bucket, std::function<void()> update);
  // After the last Start of a step. Guarded values are on their way when it returns: who reads one
  // waits for its bucket. Else as Wait.
  absl::Status End();
  // Until all buckets started are whole. The first error since the last call of End or Wait.
  absl::Status Wait();
  // The first error of a bucket that somebody waited for since then.
  absl::Status status() const;
  // Seconds that operations and Wait waited for guarded values since the last call.
  double TakeWaitedSeconds();
  // On a GPU: later work on `stream` waits for them, the host does not.
  absl::Status JoinStream(comm::DeviceGroup& group, comm::CudaStream* stream);

 private:
  // `what` is gathered, as reports call it.
  ParameterGather(const char* what, comm::Group& group, FlatParameters& flat,
                  const plan::ShardPlan& shards)
      : group_(group),
        flat_(flat),
        shards_(shards),
        names_(BucketNames(what, flat, shards)),
        works_(shards.buckets().size()) {}
  // Of the flat buffer at `base`, whose elements are of `dtype`.
  absl::StatusOr<comm::Work> Gather(int bucket, std::byte* base, DType dtype, comm::Device place);

  comm::Group& group_;
  FlatParameters& flat_;
  const plan::ShardPlan& shards_;
  const std::vector<std::string> names_;  // By bucket.
  std::unique_ptr<comm::Registration> registration_;
  std::vector<comm::Work> works_;  // By bucket: what was started and is not left to `pending_`.
  absl::Status status_;
  std::unique_ptr<PendingValues> pending_;  // Null: the values are not guarded.
  std::unique_ptr<Worker> updater_;         // Null: values are gathered.
};

}  // namespace dtrain
