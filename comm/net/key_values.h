// The map inside a store: pure operations, sizes checked and counted. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "comm/net/store.h"

namespace dtrain::comm {

class KeyValues {
 public:
  // Values are shared, so that an answer on its way to a slow client costs no copy.
  using Value = std::shared_ptr<const std::string>;

  explicit KeyValues(size_t bytes_max) : bytes_max_(bytes_max) {}

  absl::Status Set(absl::string_view key, absl::string_view value);
  Value Find(absl::string_view key) const;  // Null when there is none.
  bool Contains(absl::string_view key) const { return values_.contains(key); }
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta);
  absl::StatusOr<Store::Exchange> CompareExchange(absl::string_view key,
                                                  std::optional<absl::string_view> expected,
                                                  absl::string_view desired);
  // Sets the next item of `list` (ListItemKey), which counts them, and gives its number, from 1 on.
  absl::StatusOr<int64_t> Append(absl::string_view list, absl::string_view value);
  bool Delete(absl::string_view key);

  size_t bytes() const { return bytes_; }
  size_t size() const { return values_.size(); }

 private:
  const size_t bytes_max_;
  size_t bytes_ = 0;
  absl::flat_hash_map<std::string, Value> values_;
};

// InvalidArgument unless the key is 1 to 1,024 bytes.
absl::Status CheckStoreKey(absl::string_view key);
// InvalidArgument unless a value of so many bytes fits, at most 1 MiB.
absl::Status CheckStoreValue(absl::string_view key, size_t bytes);

}  // namespace dtrain::comm
