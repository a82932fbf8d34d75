// A store whose Check a test can let wait, as if the server were slow.
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "comm/net/store.h"

namespace dtrain::comm {

class StuckStore final : public Store {
 public:
  explicit StuckStore(Store* inner) : inner_(inner) {}

  void Stick(bool stuck) { stuck_ = stuck; }
  // How many calls of Check wait.
  int waiting() const { return waiting_; }

  absl::Status Set(absl::string_view key, absl::string_view value, Deadline deadline) override {
    return inner_->Set(key, value, deadline);
  }
  absl::StatusOr<std::string> Get(absl::string_view key, Deadline deadline) override {
    return inner_->Get(key, deadline);
  }
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta, Deadline deadline) override {
    return inner_->Add(key, delta, deadline);
  }
  absl::StatusOr<Exchange> CompareExchange(absl::string_view key,
                                           std::optional<absl::string_view> expected,
                                           absl::string_view desired, Deadline deadline) override {
    return inner_->CompareExchange(key, expected, desired, deadline);
  }
  absl::Status Wait(absl::Span<const std::string> keys, Deadline deadline) override {
    return inner_->Wait(keys, deadline);
  }
  absl::StatusOr<std::vector<bool>> Check(absl::Span<const std::string> keys,
                                          Deadline deadline) override {
    ++waiting_;
    while (stuck_) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    --waiting_;
    return inner_->Check(keys, deadline);
  }
  absl::StatusOr<bool> Delete(absl::string_view key, Deadline deadline) override {
    return inner_->Delete(key, deadline);
  }

 private:
  Store* const inner_;
  std::atomic<bool> stuck_{false};
  std::atomic<int> waiting_{0};
};

}  // namespace dtrain::comm
