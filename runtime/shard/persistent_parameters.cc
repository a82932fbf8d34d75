#include "runtime/shard/persistent_parameters.h"

#include <cstring>
#include <utility>

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "base/status.h"
#include "runtime/memory/tensor_over.h"

namespace dtrain {

absl::StatusOr<std::unique_ptr<PersistentParameters>> PersistentParameters::Create(
    comm::Group& group, comm::DeviceGroup* device_group, FlatParameters& flat, Shard shard,
    plan::PersistentPlan plan) {
  auto made = std::unique_ptr<PersistentParameters>(
      new PersistentParameters(group, device_group, flat, std::move(shard), std::move(plan)));
  if (device_group != nullptr) {
    DT_RETURN_IF_ERROR(made->MakeExchange());
  }
  return made;
}

PersistentParameters::PersistentParameters(comm::Group& group, comm::DeviceGroup* device_group,
                                           FlatParameters& flat, Shard shard,
                                           plan::PersistentPlan plan)
    : group_(group),
      device_group_(device_group),
      device_(flat.device()),
      dtype_(flat.dtype()),
      plan_(std::move(plan)),
      shard_(std::move(shard.values)),
      pinned_(shard.pinned),
      has_(flat.parameters().size(), 0),
      values_(at::zeros({plan_.elements}, shard_.options().device(device_.tensors()))) {
  for (size_t i = 0; i < plan_.entries.size(); ++i) {
    const plan::LayoutEntry& entry = flat.layout().entries()[plan_.entries[i]];
    flat.MoveElsewhere(plan_.entries[i],
                       values_.narrow(0, plan_.offsets[i], entry.elements).view(entry.shape));
    has_[plan_.entries[i]] = 1;
  }
}

absl::Status PersistentParameters::MakeExchange() {
  const auto ranks = static_cast<int64_t>(group_.size());
  const int64_t share = plan_.rank_elements_max;
  const int64_t elements = (1 + ranks) * share;
  DT_ASSIGN_OR_RETURN(
      exchange_.memory,
      DeviceMemory::Create(device_, static_cast<size_t>(elements) * DTypeBytes(dtype_),
                           "the exchange of small parameters"));
  const at::Tensor all =
      TensorOver(exchange_.memory, elements, shard_.scalar_type(), device_.tensors());
  exchange_.sent = all.narrow(0, 0, share);
  exchange_.received = all.narrow(0, share, ranks * share);
  const at::Tensor sent = at::zeros({share}, at::kLong);
  const at::Tensor values = at::zeros({plan_.elements}, at::kLong);  // Gaps hold any value.
  for (int64_t rank = 0; rank < ranks; ++rank) {
    int64_t at = 0;
    for (const plan::PersistentPiece& piece : plan_.pieces[static_cast<size_t>(rank)]) {
      const int64_t from = rank * share + at;
      values.narrow(0, piece.at, piece.elements)
          .copy_(at::arange(from, from + piece.elements, at::kLong));
      if (rank == group_.rank()) {
        sent.narrow(0, at, piece.elements)
            .copy_(at::arange(piece.local, piece.local + piece.elements, at::kLong));
      }
      at += piece.elements;
    }
  }
  exchange_.index_of_sent = sent.to(shard_.device());
  exchange_.index_of_values = values.to(device_.tensors());
  return absl::OkStatus();
}

int64_t PersistentParameters::bytes() const {
  size_t bytes = values_.nbytes();
  if (device_group_ != nullptr) {
    bytes += exchange_.memory->bytes() + exchange_.index_of_sent.nbytes() +
             exchange_.index_of_values.nbytes();
  }
  return static_cast<int64_t>(bytes);
}

// Queues the copy of what this rank sends, behind the work on the compute stream.
absl::Status PersistentParameters::QueueSent() {
  if (pinned_) {  // A device's update may not have come to it yet: the host must not look.
    const auto width = static_cast<size_t>(shard_.element_size());
    const auto* const from = static_cast<const std::byte*>(shard_.const_data_ptr());
    auto* to = static_cast<std::byte*>(exchange_.sent.mutable_data_ptr());
    for (const plan::PersistentPiece& piece : plan_.pieces[static_cast<size_t>(group_.rank())]) {
      DT_RETURN_IF_ERROR(device_.kernels().copy(
          piece.elements, {from + static_cast<size_t>(piece.local) * width, dtype_}, {to, dtype_},
          device_.kernel_stream()));
      to += static_cast<size_t>(piece.elements) * width;
    }
  } else if (shard_.device() == device_.tensors()) {
    at::index_select_out(exchange_.sent, shard_, 0, exchange_.index_of_sent);
  } else {  // The host has just updated them.
    exchange_.sent.copy_(shard_.index_select(0, exchange_.index_of_sent));
  }
  return absl::OkStatus();
}

absl::Status PersistentParameters::RefreshOnDevice() {
  const at::NoGradGuard no_grad;
  DT_RETURN_IF_ERROR(QueueSent());
  const auto whole = [this](const at::Tensor& tensor) {
    return comm::Buffer{tensor.mutable_data_ptr(), tensor.nbytes(), dtype_, device_.place()};
  };
  DT_RETURN_IF_ERROR(device_group_
                         ->AllGather(whole(exchange_.sent), whole(exchange_.received),
                                     {.name = "values of small parameters"})
                         .status());
  DT_RETURN_IF_ERROR(device_group_->JoinStream(device_.stream()));
  at::index_select_out(values_, exchange_.received, 0, exchange_.index_of_values);
  return absl::OkStatus();
}

absl::Status PersistentParameters::Refresh() {
  if (device_group_ != nullptr) {
    return RefreshOnDevice();
  }
  const auto* const shard = static_cast<const std::byte*>(shard_.const_data_ptr());
  const auto width = static_cast<size_t>(values_.element_size());
  const auto ranks = static_cast<size_t>(group_.size());
  const size_t rank_bytes = static_cast<size_t>(plan_.rank_elements_max) * width;
  std::vector<std::byte> all(ranks * rank_bytes);
  std::byte* const mine = all.data() + static_cast<size_t>(group_.rank()) * rank_bytes;
  size_t at = 0;
  for (const plan::PersistentPiece& piece : plan_.pieces[static_cast<size_t>(group_.rank())]) {
    const size_t bytes = static_cast<size_t>(piece.elements) * width;
    std::memcpy(mine + at, shard + static_cast<size_t>(piece.local) * width, bytes);
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
