#include "comm/net/key_values.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"

namespace dtrain::comm {
namespace {

// Memory of an entry beside its bytes: table slot, shared block, string objects.
constexpr size_t kEntryBytes = 128;

}  // namespace

absl::Status CheckStoreKey(absl::string_view key) {
  if (key.empty() || key.size() > kStoreKeyBytesMax) {
    return absl::InvalidArgumentError(absl::StrFormat("a store key of %d bytes; allowed: [1, %d]",
                                                      key.size(), kStoreKeyBytesMax));
  }
  return absl::OkStatus();
}

absl::Status CheckStoreValue(absl::string_view key, size_t bytes) {
  if (bytes > kStoreValueBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the value of store key \"%s\" has %d bytes; allowed: at most %d (1 MiB), "
                        "so set it in parts under several keys",
                        key, bytes, kStoreValueBytesMax));
  }
  return absl::OkStatus();
}

absl::Status KeyValues::Set(absl::string_view key, absl::string_view value) {
  DT_RETURN_IF_ERROR(CheckStoreKey(key));
  DT_RETURN_IF_ERROR(CheckStoreValue(key, value.size()));
  const auto found = values_.find(key);
  const size_t freed = found == values_.end() ? 0 : found->second->size();
  const size_t taken = value.size() + (found == values_.end() ? key.size() + kEntryBytes : 0);
  if (bytes_ - freed + taken > bytes_max_) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("the store is full (%d of %d bytes): key \"%s\" with %d bytes was refused",
                        bytes_, bytes_max_, key, value.size()));
  }
  bytes_ = bytes_ - freed + taken;
  auto shared = std::make_shared<const std::string>(value);
  if (found == values_.end()) {
    values_.emplace(std::string(key), std::move(shared));
  } else {
    found->second = std::move(shared);
  }
  return absl::OkStatus();
}

KeyValues::Value KeyValues::Find(absl::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : found->second;
}

absl::StatusOr<int64_t> KeyValues::Add(absl::string_view key, int64_t delta) {
  int64_t sum = 0;
  if (const Value value = Find(key); value != nullptr && !absl::SimpleAtoi(*value, &sum)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "store key \"%s\" holds no decimal number but %d bytes: it cannot be added to", key,
        value->size()));
  }
  if (__builtin_add_overflow(sum, delta, &sum)) {
    return absl::OutOfRangeError(
        absl::StrFormat("the counter \"%s\" would overflow 64 bits by adding %d", key, delta));
  }
  DT_RETURN_IF_ERROR(Set(key, absl::StrCat(sum)));
  return sum;
}

absl::StatusOr<Store::Exchange> KeyValues::CompareExchange(
    absl::string_view key, std::optional<absl::string_view> expected, absl::string_view desired) {
  const Value value = Find(key);
  const bool equal =
      value == nullptr ? !expected.has_value() : expected == absl::string_view(*value);
  if (!equal) {
    return Store::Exchange{false, value == nullptr ? "" : *value};
  }
  DT_RETURN_IF_ERROR(Set(key, desired));
  return Store::Exchange{true, std::string(desired)};
}

absl::StatusOr<int64_t> KeyValues::Append(absl::string_view list, absl::string_view value) {
  DT_ASSIGN_OR_RETURN(const int64_t number, Add(list, 1));
  if (absl::Status set = Set(ListItemKey(list, number), value); !set.ok()) {
    Add(list, -1).IgnoreError();  // A number without an item would be waited for.
    return set;
  }
  return number;
}

bool KeyValues::Delete(absl::string_view key) {
  const auto found = values_.find(key);
  if (found == values_.end()) {
    return false;
  }
  bytes_ -= found->first.size() + found->second->size() + kEntryBytes;
  values_.erase(found);
  return true;
}

}  // namespace dtrain::comm
