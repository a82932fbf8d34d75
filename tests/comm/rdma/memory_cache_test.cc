// The memory that a device reaches: registered regions, and regions that were used before and are
// still the same.
#include "comm/transport/rdma/memory_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "comm/transport/rdma/fake/fake_verbs.h"

namespace dtrain::comm::memory_cache_test {
namespace {

constexpr size_t kPage = 4096;

MemoryRange RangeOf(const void* data, size_t bytes) {
  return {reinterpret_cast<uintptr_t>(data), reinterpret_cast<uintptr_t>(data) + bytes};
}

// A mapping of memory.
class Pages {
 public:
  explicit Pages(size_t count)
      : bytes(count * kPage),
        data(static_cast<char*>(
            mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    std::memset(data, 1, bytes);
  }
  ~Pages() { Unmap(); }
  void Unmap() { munmap(std::exchange(data, nullptr), bytes); }

  size_t bytes;
  char* data;
};

struct FakeWatch final : UnmapWatch {
  bool Watch(const MemoryRange& range) override {
    watched.push_back(range);
    return can_watch;
  }
  void Take(absl::FunctionRef<void(const MemoryRange&)> take) override {
    for (const MemoryRange& range : std::exchange(gone, {})) {
      take(range);
    }
  }
  bool can_watch = true;
  std::vector<MemoryRange> watched;
  std::vector<MemoryRange> gone;
};

class MemoryCacheTest : public ::testing::Test {
 protected:
  std::unique_ptr<MemoryCache> Cache(size_t bytes_max, const FakeVerbsFaults& faults = {}) {
    FakeVerbs verbs(faults);
    device_ = *verbs.Open("fake0", 1, 16);
    auto watch = std::make_unique<FakeWatch>();
    watch_ = watch.get();
    return std::make_unique<MemoryCache>(*device_, std::move(watch), bytes_max);
  }
  std::unique_ptr<VerbsDevice> device_;
  FakeWatch* watch_ = nullptr;
};

TEST_F(MemoryCacheTest, RegisteredMemoryIsFoundUntilItIsDropped) {
  Pages pages(4);
  auto cache = Cache(0);
  auto held = cache->Register(pages.data, pages.bytes);
  ASSERT_TRUE(held.ok());
  EXPECT_NE(cache->Find(pages.data + 100, pages.bytes - 100), nullptr);
  EXPECT_EQ(cache->Find(pages.data + 100, pages.bytes), nullptr) << "it ends beyond";
  std::thread([&] { held->reset(); }).join();
  cache->NextMove();
  EXPECT_EQ(cache->Find(pages.data, 1), nullptr);
  EXPECT_EQ(cache->made(), 0U);
}

TEST_F(MemoryCacheTest, MemoryThatIsUsedAgainIsRegisteredOnce) {
  Pages pages(4);
  auto cache = Cache(pages.bytes);
  const MemoryRegion* const first = cache->Find(pages.data + 5, 2 * kPage);
  ASSERT_NE(first, nullptr);
  cache->NextMove();
  EXPECT_EQ(cache->Find(pages.data, kPage), first) << "whole pages are registered";
  EXPECT_EQ(cache->made(), 1U);
  EXPECT_EQ(cache->kept_bytes(), 3 * kPage);
}

TEST_F(MemoryCacheTest, TheLeastRecentlyUsedMakesRoomButNeverWhatThisMoveUses) {
  Pages pages(6);
  auto cache = Cache(2 * kPage);
  const auto find = [&](size_t page) { return cache->Find(pages.data + page * kPage, kPage); };
  ASSERT_NE(find(0), nullptr);
  cache->NextMove();
  ASSERT_NE(find(2), nullptr);
  cache->NextMove();
  ASSERT_NE(find(0), nullptr);
  ASSERT_NE(find(4), nullptr) << "page 2 goes";
  EXPECT_EQ(find(2), nullptr) << "both others are of this move";
  EXPECT_EQ(cache->made(), 3U);
  EXPECT_EQ(cache->kept_bytes(), 2 * kPage);
}

TEST_F(MemoryCacheTest, MemoryThatWentAndCameAgainIsRegisteredAnew) {
  Pages pages(4);
  auto cache = Cache(1 << 20);
  ASSERT_NE(cache->Find(pages.data, 2 * kPage), nullptr);
  ASSERT_NE(cache->Find(pages.data + 3 * kPage, kPage), nullptr);
  watch_->gone.push_back(RangeOf(pages.data + kPage, kPage));
  cache->NextMove();
  EXPECT_EQ(cache->kept_bytes(), kPage) << "only the other is still known";
  ASSERT_NE(cache->Find(pages.data, 2 * kPage), nullptr);
  EXPECT_EQ(cache->made(), 3U);
}

TEST_F(MemoryCacheTest, WhatCannotBeWatchedOrPinnedIsNotKept) {
  Pages pages(2);
  auto cache = Cache(1 << 20);
  watch_->can_watch = false;
  EXPECT_EQ(cache->Find(pages.data, kPage), nullptr);
  cache = Cache(1 << 20, {.regions_max = 1});
  ASSERT_NE(cache->Find(pages.data, kPage), nullptr);
  EXPECT_EQ(cache->Find(pages.data + kPage, kPage), nullptr);
  EXPECT_EQ(cache->Register(pages.data, 2 * kPage).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_NE(cache->Find(pages.data, kPage), nullptr) << "what there is stays";
}

TEST(UserfaultWatchTest, ToldIsWhatWasUnmappedMovedOrThrownAwayOnceTheCallHasReturned) {
  auto watch = UserfaultWatch::Create();
  if (!watch.ok()) {
    GTEST_SKIP() << "LOUD SKIP: " << watch.status();
  }
  const auto gone = [&] {
    std::vector<MemoryRange> ranges;
    (*watch)->Take([&](const MemoryRange& range) { ranges.push_back(range); });
    return ranges;
  };
  const auto only = [&](const char* data, size_t bytes) {
    const auto ranges = gone();
    return ranges.size() == 1 && ranges[0].begin == reinterpret_cast<uintptr_t>(data) &&
           ranges[0].end == ranges[0].begin + bytes;
  };
  for (int round = 0; round < 200; ++round) {  // The watching thread must always be in time.
    Pages unmapped(4);
    ASSERT_TRUE((*watch)->Watch(RangeOf(unmapped.data, unmapped.bytes)));
    EXPECT_TRUE(gone().empty());
    unmapped.data[0] = 2;  // No access to the memory waits for the watching thread.
    const char* const was = unmapped.data;
    unmapped.Unmap();
    ASSERT_TRUE(only(was, unmapped.bytes)) << round;
  }
  Pages thrown(4);
  ASSERT_TRUE((*watch)->Watch(RangeOf(thrown.data, thrown.bytes)));
  ASSERT_EQ(madvise(thrown.data + kPage, kPage, MADV_DONTNEED), 0);
  EXPECT_TRUE(only(thrown.data + kPage, kPage));
  EXPECT_EQ(thrown.data[kPage], 0) << "and reading it again waits for nobody";
  Pages moved(4);
  ASSERT_TRUE((*watch)->Watch(RangeOf(moved.data, moved.bytes)));
  const char* const was = moved.data;
  void* const now = mremap(moved.data, moved.bytes, 64 * kPage, MREMAP_MAYMOVE);
  ASSERT_NE(now, MAP_FAILED);
  moved.data = static_cast<char*>(now);
  moved.bytes = 64 * kPage;
  if (now != was) {
    EXPECT_FALSE(gone().empty());
  }
}

}  // namespace
}  // namespace dtrain::comm::memory_cache_test
