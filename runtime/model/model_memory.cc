#include "runtime/model/model_memory.h"

#include <unordered_map>
#include <utility>

#include "absl/strings/str_format.h"

namespace dtrain {
namespace {

using HeldKind = HeldTensor::Kind;

const c10::StorageImpl* StorageOf(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

bool SharesNow(const Footprint& memory, const at::Tensor& other) {
  const std::optional<Footprint> now = FootprintOf(other);
  return now.has_value() && ShareElements(memory, *now);
}

}  // namespace

ModelMemory::ModelMemory(std::string owner, std::vector<HeldTensor> tensors)
    : owner_(std::move(owner)) {
  for (HeldTensor& item : tensors) {
    std::optional<Footprint> memory = FootprintOf(item.tensor);
    auto storage =
        memory.has_value()
            ? item.tensor.storage().getWeakStorageImpl()
            : c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>());
    items_.push_back({std::move(item), std::move(memory), std::move(storage)});
  }
}

absl::Status ModelMemory::CheckApart(const ModelMemory& earlier) const {
  // By the storage in which they were, while somebody keeps it, and the one in which they are.
  std::unordered_multimap<const void*, const Item*> by_storage;
  for (const Item& item : earlier.items_) {
    const auto was = item.storage.lock();
    const c10::StorageImpl* const is = StorageOf(item.tensor.tensor);
    if (was.defined()) {
      by_storage.emplace(was.get(), &item);
    }
    if (is != nullptr && is != was.get()) {
      by_storage.emplace(is, &item);
    }
  }
  for (const Item& mine : items_) {
    if (!mine.memory.has_value()) {
      continue;
    }
    const auto [begin, end] = by_storage.equal_range(StorageOf(mine.tensor.tensor));
    for (auto found = begin; found != end; ++found) {
      const Item& other = *found->second;
      const bool trains =
          mine.tensor.kind == HeldKind::kTrains || other.tensor.kind == HeldKind::kTrains;
      const bool buffer =
          mine.tensor.kind == HeldKind::kBuffer || other.tensor.kind == HeldKind::kBuffer;
      const bool moves = StorageOf(other.tensor.tensor) != found->first || !mine.tensor.stays;
      const bool same = mine.tensor.tensor.is_same(other.tensor.tensor);
      // A weight that is lent as one tensor, frozen here, follows where the other engine moves it.
      const bool lent = same && mine.tensor.kind == HeldKind::kFrozen && mine.tensor.stays;
      if (((trains && !lent) || (buffer && moves && !same)) &&
          ((other.memory.has_value() && ShareElements(*mine.memory, *other.memory)) ||
           SharesNow(*mine.memory, other.tensor.tensor))) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "%s of %s and %s of %s, which was made before, share memory, and would come apart "
            "where each engine gives its own a place of its own; train both modules by one engine, "
            "or give each memory of its own (clone)",
            NameOf(mine.tensor), owner_, NameOf(other.tensor), earlier.owner_));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace dtrain
