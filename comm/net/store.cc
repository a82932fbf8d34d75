#include "comm/net/store.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/console/wait_notice.h"
#include "base/status.h"
#include "comm/net/key_values.h"
#include "comm/net/store_errors.h"

namespace dtrain::comm {
namespace {

class MemoryStore final : public Store {
 public:
  absl::Status Set(absl::string_view key, absl::string_view value, Deadline) override {
    std::lock_guard lock(mutex_);
    changed_.notify_all();
    return values_.Set(key, value);
  }
  absl::StatusOr<std::string> Get(absl::string_view key, Deadline deadline) override {
    DT_RETURN_IF_ERROR(CheckStoreKey(key));
    WaitTimer timer;
    std::unique_lock lock(mutex_);
    if (!WaitUntil(lock, deadline, [&] { return values_.Contains(key); })) {
      return MissingKeyError("memory store", {std::string(key)}, timer.Elapsed());
    }
    return *values_.Find(key);
  }
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta, Deadline) override {
    std::lock_guard lock(mutex_);
    changed_.notify_all();
    return values_.Add(key, delta);
  }
  absl::StatusOr<Exchange> CompareExchange(absl::string_view key,
                                           std::optional<absl::string_view> expected,
                                           absl::string_view desired, Deadline) override {
    std::lock_guard lock(mutex_);
    changed_.notify_all();
    return values_.CompareExchange(key, expected, desired);
  }
  absl::Status Wait(absl::Span<const std::string> keys, Deadline deadline) override {
    WaitTimer timer;
    std::unique_lock lock(mutex_);
    std::vector<std::string> missing;
    if (!WaitUntil(lock, deadline, [&] {
          missing.clear();
          for (const std::string& key : keys) {
            if (!values_.Contains(key)) {
              missing.push_back(key);
            }
          }
          return missing.empty();
        })) {
      return MissingKeyError("memory store", missing, timer.Elapsed());
    }
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<bool>> Check(absl::Span<const std::string> keys, Deadline) override {
    std::lock_guard lock(mutex_);
    std::vector<bool> exists;
    for (const std::string& key : keys) {
      exists.push_back(values_.Contains(key));
    }
    return exists;
  }
  absl::StatusOr<bool> Delete(absl::string_view key, Deadline) override {
    std::lock_guard lock(mutex_);
    return values_.Delete(key);
  }

 private:
  template <typename Ready>
  bool WaitUntil(std::unique_lock<std::mutex>& lock, const Deadline& deadline, Ready ready) {
    while (!ready()) {
      if (deadline.Expired()) {
        return false;
      }
      changed_.wait_for(lock, std::chrono::milliseconds(deadline.PollTimeoutMs()));
    }
    return true;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  KeyValues values_{256U << 20};
};

class PrefixStore final : public Store {
 public:
  PrefixStore(std::shared_ptr<Store> base, std::string prefix)
      : base_(std::move(base)), prefix_(std::move(prefix)) {}

  absl::Status Set(absl::string_view key, absl::string_view value, Deadline deadline) override {
    return base_->Set(Full(key), value, deadline);
  }
  absl::StatusOr<std::string> Get(absl::string_view key, Deadline deadline) override {
    return base_->Get(Full(key), deadline);
  }
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta, Deadline deadline) override {
    return base_->Add(Full(key), delta, deadline);
  }
  absl::StatusOr<Exchange> CompareExchange(absl::string_view key,
                                           std::optional<absl::string_view> expected,
                                           absl::string_view desired, Deadline deadline) override {
    return base_->CompareExchange(Full(key), expected, desired, deadline);
  }
  absl::Status Wait(absl::Span<const std::string> keys, Deadline deadline) override {
    return base_->Wait(Full(keys), deadline);
  }
  absl::StatusOr<std::vector<bool>> Check(absl::Span<const std::string> keys,
                                          Deadline deadline) override {
    return base_->Check(Full(keys), deadline);
  }
  absl::StatusOr<bool> Delete(absl::string_view key, Deadline deadline) override {
    return base_->Delete(Full(key), deadline);
  }

 private:
  std::string Full(absl::string_view key) const { return absl::StrCat(prefix_, "/", key); }
  std::vector<std::string> Full(absl::Span<const std::string> keys) const {
    std::vector<std::string> full;
    full.reserve(keys.size());
    for (const std::string& key : keys) {
      full.push_back(Full(key));
    }
    return full;
  }
  const std::shared_ptr<Store> base_;
  const std::string prefix_;
};

std::vector<std::string> RankKeys(absl::string_view prefix, int size) {
  std::vector<std::string> keys;
  keys.reserve(static_cast<size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    keys.push_back(RankKey(prefix, rank));
  }
  return keys;
}

}  // namespace

absl::Status MissingKeyError(absl::string_view store, const std::vector<std::string>& missing,
                             absl::Duration waited) {
  constexpr size_t kShown = 5;
  const size_t shown = std::min(kShown, missing.size());
  const auto join = absl::StrJoin(
      missing.begin(), missing.begin() + static_cast<ptrdiff_t>(shown), ", ",
      [](std::string* out, const std::string& key) { absl::StrAppend(out, "\"", key, "\""); });
  return absl::DeadlineExceededError(absl::StrFormat(
      "%s: waited %s for key%s %s%s, which nobody set", store, absl::FormatDuration(waited),
      missing.size() == 1 ? "" : "s", join,
      missing.size() > shown ? absl::StrCat(" and ", missing.size() - shown, " more") : ""));
}

std::unique_ptr<Store> NewMemoryStore() { return std::make_unique<MemoryStore>(); }

std::unique_ptr<Store> NewPrefixStore(std::shared_ptr<Store> base, std::string prefix) {
  return std::make_unique<PrefixStore>(std::move(base), std::move(prefix));
}

std::string ListItemKey(absl::string_view list, int64_t number) {
  return absl::StrCat(list, "/", number);
}

std::string RankKey(absl::string_view prefix, int rank) { return absl::StrCat(prefix, "/", rank); }

absl::StatusOr<std::vector<int>> MissingRanks(Store& store, absl::string_view prefix, int size,
                                              Deadline deadline) {
  DT_ASSIGN_OR_RETURN(const std::vector<bool> exists,
                      store.Check(RankKeys(prefix, size), deadline));
  std::vector<int> missing;
  for (int rank = 0; rank < size; ++rank) {
    if (!exists[static_cast<size_t>(rank)]) {
      missing.push_back(rank);
    }
  }
  return missing;
}

std::string NameRanks(const std::vector<int>& ranks) {
  constexpr size_t kShown = 8;
  const size_t shown = std::min(kShown, ranks.size());
  const auto end = ranks.begin() + static_cast<ptrdiff_t>(shown);
  return absl::StrCat(
      ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks.begin(), end, ", "),
      ranks.size() > shown ? absl::StrCat(" and ", ranks.size() - shown, " more") : "");
}

std::string RanksToCome(Store& store, absl::string_view prefix, int size, absl::string_view where) {
  const auto missing = MissingRanks(store, prefix, size, Deadline::After(absl::Seconds(1)));
  if (!missing.ok() || missing->empty()) {
    return "";
  }
  return absl::StrFormat("%d of %d ranks have come to %s; still to come: %s",
                         size - static_cast<int>(missing->size()), size, where,
                         NameRanks(*missing));
}

absl::Status WaitForRanks(Store& store, absl::string_view prefix, int size, Deadline deadline,
                          absl::string_view where) {
  const WaitTimer timer;
  const std::string place = where.empty() ? absl::StrCat("\"", prefix, "\"") : std::string(where);
  const WaitNotice notice([&] { return RanksToCome(store, prefix, size, place); });
  absl::Status waited = store.Wait(RankKeys(prefix, size), deadline);
  if (!absl::IsDeadlineExceeded(waited)) {
    return waited;
  }
  const auto missing = MissingRanks(store, prefix, size, Deadline::After(absl::Seconds(2)));
  if (!missing.ok() || missing->empty()) {
    return waited;
  }
  return absl::DeadlineExceededError(
      absl::StrFormat("%d of %d ranks did not arrive at \"%s\" within %s: %s", missing->size(),
                      size, prefix, absl::FormatDuration(timer.Elapsed()), NameRanks(*missing)));
}

}  // namespace dtrain::comm
