// GatherMemory of a rank that trains on the host: pages of a reserved range. Touching a
// closed page ends the process with a line that names the parameter (UnseenRead).
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/group.h"
#include "runtime/model/flat_parameters.h"
#include "runtime/plan/layout/shard_plan.h"
#include "runtime/shard/gather_memory.h"
#include "runtime/shard/unseen_read.h"

namespace dtrain {

class GatherPages final : public GatherMemory {
 public:
  // Collective. REQUIRES: all outlive this object; the values of `flat` are reserved, parameters
  // that live elsewhere have moved there, and `shards` cuts the values at multiples of kNormBlock
  // elements, which are whole pages.
  static absl::StatusOr<std::unique_ptr<GatherPages>> Create(comm::Group& group,
                                                             FlatParameters& flat,
                                                             const plan::ShardPlan& shards,
                                                             const ShardMemory& shard);

  absl::Status Open(int bucket) override;
  absl::Status Close(int bucket) override;
  absl::Status Discard(int bucket) override;
  absl::StatusOr<const std::byte*> Share(int bucket) override;
  absl::Status Started(int /*bucket*/, comm::DeviceGroup* /*by*/) override {
    return absl::OkStatus();
  }
  absl::Status Arrive(int bucket, comm::Work work) override;
  int64_t bytes() const override { return bytes_; }

 private:
  GatherPages(int rank, FlatParameters& flat, const plan::ShardPlan& shards, const std::byte* shard)
      : rank_(rank),
        flat_(flat),
        shards_(shards),
        shard_(shard),
        backed_(shards.buckets().size(), 0) {}
  // Notes that it has memory from now on, or none.
  void Back(int bucket, bool memory);
  absl::Status On(int bucket, absl::Status (ReservedMemory::*act)(size_t, size_t));

  const int rank_;
  FlatParameters& flat_;
  const plan::ShardPlan& shards_;
  const std::byte* const shard_;
  std::vector<uint8_t> backed_;  // By bucket.
  int64_t bytes_ = 0;
  std::unique_ptr<comm::Registration> registration_;
  std::optional<UnseenRead> unseen_read_;
};

}  // namespace dtrain
