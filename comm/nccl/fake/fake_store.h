// A Store in shared memory that forked processes inherit: small, for tests of groups.
//
// Make it before fork. Waiting polls. Thread- and process-safe.
#pragma once

#include <functional>

#include "comm/net/store.h"

namespace dtrain::comm {

struct FakeStoreMemory;

class FakeStore final : public Store {
 public:
  FakeStore();
  FakeStore(const FakeStore&) = delete;
  FakeStore& operator=(const FakeStore&) = delete;
  ~FakeStore() override;

  absl::Status Set(absl::string_view key, absl::string_view value, Deadline deadline) override;
  absl::StatusOr<std::string> Get(absl::string_view key, Deadline deadline) override;
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta, Deadline deadline) override;
  absl::StatusOr<Exchange> CompareExchange(absl::string_view key,
                                           std::optional<absl::string_view> expected,
                                           absl::string_view desired, Deadline deadline) override;
  absl::Status Wait(absl::Span<const std::string> keys, Deadline deadline) override;
  absl::StatusOr<std::vector<bool>> Check(absl::Span<const std::string> keys,
                                          Deadline deadline) override;
  absl::StatusOr<bool> Delete(absl::string_view key, Deadline deadline) override;

 private:
  std::optional<std::string> Read(absl::string_view key);
  // Runs `change` on the value of `key` (nullopt: missing) under the lock; the result is stored.
  void Change(absl::string_view key,
              const std::function<std::optional<std::string>(std::optional<std::string>)>& change);
  FakeStoreMemory* memory_;
};

}  // namespace dtrain::comm
