// The key-value store through which ranks and agents meet: small values, atomic counters, waiting.
//
// Every Store is thread-safe, and a call that waits never holds up a call of another thread. Keys
// are at most 1,024 bytes, values at most 1 MiB. Errors: DeadlineExceeded names the key;
// Unavailable: the server is gone (it does not come back: the job restarts).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/deadline.h"

namespace dtrain::comm {

inline constexpr size_t kStoreKeyBytesMax = 1024;
inline constexpr size_t kStoreValueBytesMax = 1U << 20;
inline constexpr size_t kStoreKeysMax = 65536;  // In one Wait or Check.

class Store {
 public:
  virtual ~Store() = default;

  virtual absl::Status Set(absl::string_view key, absl::string_view value, Deadline deadline) = 0;
  // The value of `key`; waits until it exists.
  virtual absl::StatusOr<std::string> Get(absl::string_view key, Deadline deadline) = 0;
  // Adds to a counter (a decimal number; a missing key counts as 0) and gives the new value.
  virtual absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta, Deadline deadline) = 0;
  struct Exchange {
    bool exchanged = false;
    std::string value;  // The key's value now; "" when it does not exist.
  };
  // Sets `key` to `desired` if it holds `expected` (nullopt: if it does not exist).
  virtual absl::StatusOr<Exchange> CompareExchange(absl::string_view key,
                                                   std::optional<absl::string_view> expected,
                                                   absl::string_view desired,
                                                   Deadline deadline) = 0;
  // Waits until all keys exist. DeadlineExceeded names the first missing ones.
  virtual absl::Status Wait(absl::Span<const std::string> keys, Deadline deadline) = 0;
  // For each key whether it exists; does not wait for it.
  virtual absl::StatusOr<std::vector<bool>> Check(absl::Span<const std::string> keys,
                                                  Deadline deadline) = 0;
  // Whether the key existed.
  virtual absl::StatusOr<bool> Delete(absl::string_view key, Deadline deadline) = 0;
};

// The key of an item of a list (StoreClient::Append): "list/7".
std::string ListItemKey(absl::string_view list, int64_t number);

// A store inside one process, for ranks that are threads.
std::unique_ptr<Store> NewMemoryStore();

// `base` with "prefix/" before each key; e.g. one for each group and epoch.
std::unique_ptr<Store> NewPrefixStore(std::shared_ptr<Store> base, std::string prefix);

// The key under which rank `rank` says that it has arrived at `prefix`: "prefix/rank".
std::string RankKey(absl::string_view prefix, int rank);
// The ranks in [0, size) whose RankKey does not exist, in order.
absl::StatusOr<std::vector<int>> MissingRanks(Store& store, absl::string_view prefix, int size,
                                              Deadline deadline);
// "rank 3", "ranks 1, 2 and 4 more" (from the ninth on they are counted).
std::string NameRanks(const std::vector<int>& ranks);
// "1 of 2 ranks have come to WHERE; still to come: rank 1"; "" when all have, or the store does not
// answer within a second.
std::string RanksToCome(Store& store, absl::string_view prefix, int size, absl::string_view where);
// Waits until all `size` ranks have set their RankKey; DeadlineExceeded names those that did not.
// The log says from time to time who is still to come; `where` says where to, else the prefix does.
absl::Status WaitForRanks(Store& store, absl::string_view prefix, int size, Deadline deadline,
                          absl::string_view where = "");

}  // namespace dtrain::comm
