#include "runtime/shard/persistent_parameters.h"

#include <cstring>
#include <utility>

#include "ATen/Functions.h"
#include "base/status.h"
#include "runtime/engine/dtypes.h"

namespace dtrain {

PersistentParameters::PersistentParameters(comm::Group& group, FlatParameters& flat,
                                           const std::byte* shard, plan::PersistentPlan plan)
    : group_(group),
      plan_(std::move(plan)),
      shard_(shard),
      has_(flat.parameters().size(), 0),
      values_(at::zeros({plan_.elements}, at::TensorOptions(FloatTypeOf(flat.dtype())))) {
  for (size_t i = 0; i < plan_.entries.size(); ++i) {
    const plan::LayoutEntry& entry = flat.layout().entries()[plan_.entries[i]];
    flat.MoveElsewhere(plan_.entries[i],
                       values_.narrow(0, plan_.offsets[i], entry.elements).view(entry.shape));
    has_[plan_.entries[i]] = 1;
  }
}

absl::Status PersistentParameters::Refresh() {
  const auto width = static_cast<size_t>(values_.element_size());
  const auto ranks = static_cast<size_t>(group_.size());
  const size_t rank_bytes = static_cast<size_t>(plan_.rank_elements_max) * width;
  std::vector<std::byte> all(ranks * rank_bytes);
  std::byte* const mine = all.data() + static_cast<size_t>(group_.rank()) * rank_bytes;
  size_t at = 0;
  for (const plan::PersistentPiece& piece : plan_.pieces[static_cast<size_t>(group_.rank())]) {
    const size_t bytes = static_cast<size_t>(piece.elements) * width;
    std::memcpy(mine + at, shard_ + static_cast<size_t>(piece.local) * width, bytes);
    at += bytes;
  }
  DT_ASSIGN_OR_RETURN(
      const comm::Work work,
      group_.AllGather({mine, rank_bytes, DType::kUInt8, {}},
                       {all.data(), all.size(), DType::kUInt8, {}},
                       {.name = "values of small parameters", .caller_waits = true}));
  DT_RETURN_IF_ERROR(work.Wait());
  auto* const values = static_cast<std::byte*>(values_.mutable_data_ptr());
  for (size_t rank = 0; rank < ranks; ++rank) {
    const std::byte* from = all.data() + rank * rank_bytes;
    for (const plan::PersistentPiece& piece : plan_.pieces[rank]) {
      const size_t bytes = static_cast<size_t>(piece.elements) * width;
      std::memcpy(values + static_cast<size_t>(piece.at) * width, from, bytes);
      from += bytes;
    }
  }
  return absl::OkStatus();
}

}  // namespace dtrain
