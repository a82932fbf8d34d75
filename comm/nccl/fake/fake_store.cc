#include "comm/nccl/fake/fake_store.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"

namespace dtrain::comm {

struct FakeStoreMemory {
  static constexpr int kEntries = 256;
  struct Entry {
    bool used;
    uint32_t key_bytes;
    uint32_t value_bytes;
    char key[256];
    char value[1024];
  };
  std::atomic<int> locked;
  Entry entries[kEntries];
};

namespace {

class Lock {
 public:
  explicit Lock(std::atomic<int>& locked) : locked_(locked) {
    while (locked_.exchange(1, std::memory_order_acquire) != 0) {
      usleep(10);
    }
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  ~Lock() { locked_.store(0, std::memory_order_release); }

 private:
  std::atomic<int>& locked_;
};

}  // namespace

FakeStore::FakeStore() {
  void* const data = mmap(nullptr, sizeof(FakeStoreMemory), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  DT_CHECK(data != MAP_FAILED);
  memory_ = static_cast<FakeStoreMemory*>(data);
}

FakeStore::~FakeStore() { munmap(memory_, sizeof(FakeStoreMemory)); }

void FakeStore::Change(
    absl::string_view key,
    const std::function<std::optional<std::string>(std::optional<std::string>)>& change) {
  const Lock lock(memory_->locked);
  FakeStoreMemory::Entry* place = nullptr;
  for (auto& entry : memory_->entries) {
    if (entry.used && absl::string_view(entry.key, entry.key_bytes) == key) {
      place = &entry;
      break;
    }
    if (!entry.used && place == nullptr) {
      place = &entry;
    }
  }
  DT_CHECK(place != nullptr) << "the fake store is full";
  const auto value = change(
      place->used ? std::optional(std::string(place->value, place->value_bytes)) : std::nullopt);
  place->used = value.has_value();
  if (value.has_value()) {
    DT_CHECK(key.size() <= sizeof(place->key) && value->size() <= sizeof(place->value));
    std::memcpy(place->key, key.data(), key.size());
    std::memcpy(place->value, value->data(), value->size());
    place->key_bytes = static_cast<uint32_t>(key.size());
    place->value_bytes = static_cast<uint32_t>(value->size());
  }
}

std::optional<std::string> FakeStore::Read(absl::string_view key) {
  std::optional<std::string> seen;
  Change(key, [&seen](std::optional<std::string> value) { return seen = std::move(value); });
  return seen;
}

absl::Status FakeStore::Set(absl::string_view key, absl::string_view value, Deadline /*deadline*/) {
  Change(key, [&](auto) { return std::optional<std::string>(value); });
  return absl::OkStatus();
}

absl::StatusOr<std::string> FakeStore::Get(absl::string_view key, Deadline deadline) {
  while (true) {
    if (auto value = Read(key)) {
      return *std::move(value);
    }
    if (deadline.Expired()) {
      return absl::DeadlineExceededError(absl::StrCat("waiting for key ", key));
    }
    usleep(200);
  }
}

absl::StatusOr<int64_t> FakeStore::Add(absl::string_view key, int64_t delta,
                                       Deadline /*deadline*/) {
  int64_t sum = 0;
  Change(key, [&](const std::optional<std::string>& value) {
    int64_t now = 0;
    (void)absl::SimpleAtoi(value.value_or("0"), &now);
    sum = now + delta;
    return std::optional<std::string>(absl::StrCat(sum));
  });
  return sum;
}

absl::StatusOr<Store::Exchange> FakeStore::CompareExchange(
    absl::string_view key, std::optional<absl::string_view> expected, absl::string_view desired,
    Deadline /*deadline*/) {
  Exchange result;
  Change(key, [&](std::optional<std::string> value) {
    const bool same =
        value.has_value() == expected.has_value() && (!value.has_value() || *expected == *value);
    if (same) {
      value = std::string(desired);
    }
    result = {same, value.value_or("")};
    return value;
  });
  return result;
}

absl::Status FakeStore::Wait(absl::Span<const std::string> keys, Deadline deadline) {
  for (const std::string& key : keys) {
    DT_RETURN_IF_ERROR(Get(key, deadline).status());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<bool>> FakeStore::Check(absl::Span<const std::string> keys,
                                                   Deadline /*deadline*/) {
  std::vector<bool> found;
  for (const std::string& key : keys) {
    found.push_back(Read(key).has_value());
  }
  return found;
}

absl::StatusOr<bool> FakeStore::Delete(absl::string_view key, Deadline /*deadline*/) {
  bool existed = false;
  Change(key, [&](const std::optional<std::string>& value) {
    existed = value.has_value();
    return std::optional<std::string>();
  });
  return existed;
}

}  // namespace dtrain::comm
