#include "runtime/shard/gather_pages.h"

#include <unistd.h>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "kernels/optimizer/grad_norm.h"

namespace dtrain {

absl::StatusOr<std::unique_ptr<GatherPages>> GatherPages::Create(comm::Group& group,
                                                                 FlatParameters& flat,
                                                                 const plan::ShardPlan& shards,
                                                                 const ShardMemory& shard) {
  const auto page = static_cast<int64_t>(sysconf(_SC_PAGESIZE));
  if (kernels::kNormBlock * static_cast<int64_t>(DTypeBytes(flat.dtype())) % page != 0) {
    return absl::UnimplementedError(absl::StrFormat(
        "zero_optimization.stage 3 on a machine with pages of %d bytes is not supported; set 2",
        page));
  }
  auto memory =
      std::unique_ptr<GatherPages>(new GatherPages(group.rank(), flat, shards, shard.data));
  if (shard.symmetric != nullptr) {
    DT_ASSIGN_OR_RETURN(memory->registration_, group.Register(shard.symmetric));
  }
  memory->unseen_read_.emplace(flat);
  return memory;
}

absl::Status GatherPages::On(int bucket, absl::Status (ReservedMemory::*act)(size_t, size_t)) {
  const plan::FlatRange range = shards_.buckets()[static_cast<size_t>(bucket)];
  const size_t width = DTypeBytes(flat_.dtype());
  return ((*flat_.value_range()).*act)(static_cast<size_t>(range.begin) * width,
                                       static_cast<size_t>(range.elements()) * width);
}

void GatherPages::Back(int bucket, bool memory) {
  uint8_t& backed = backed_[static_cast<size_t>(bucket)];
  const int64_t change = static_cast<int64_t>(memory) - backed;
  backed = memory ? 1 : 0;
  bytes_ += change * shards_.buckets()[static_cast<size_t>(bucket)].elements() *
            static_cast<int64_t>(DTypeBytes(flat_.dtype()));
}

absl::Status GatherPages::Open(int bucket) {
  Back(bucket, true);
  return On(bucket, &ReservedMemory::Open);
}

absl::Status GatherPages::Close(int bucket) { return On(bucket, &ReservedMemory::Close); }

absl::Status GatherPages::Discard(int bucket) {
  Back(bucket, false);
  return On(bucket, &ReservedMemory::Discard);
}

absl::StatusOr<const std::byte*> GatherPages::Share(int bucket) {
  return shard_ +
         static_cast<size_t>(shards_.part(bucket, rank_).local) * DTypeBytes(flat_.dtype());
}

absl::Status GatherPages::Arrive(int /*bucket*/, comm::Work work) { return work.Wait(); }

}  // namespace dtrain
