// A queue between a producer and a consumer of different speeds, and its end.
#include "base/threads/bounded_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace dtrain::bounded_queue_test {
namespace {

Deadline Soon() { return Deadline::After(absl::Milliseconds(20)); }

TEST(BoundedQueue, KeepsOrderAndCapacity) {
  BoundedQueue<int> queue(2);
  EXPECT_TRUE(queue.TryPush(1));
  EXPECT_TRUE(queue.Push(2));
  EXPECT_FALSE(queue.TryPush(3));
  EXPECT_FALSE(queue.Push(3, Soon()));
  EXPECT_EQ(queue.size(), 2U);
  EXPECT_EQ(queue.Pop(), 1);
  EXPECT_EQ(queue.Pop(), 2);
  EXPECT_EQ(queue.Pop(Soon()), std::nullopt);
}

TEST(BoundedQueue, GivesWhatIsLeftAfterClose) {
  BoundedQueue<std::unique_ptr<int>> queue(4);
  EXPECT_TRUE(queue.Push(std::make_unique<int>(5)));
  queue.Close();
  EXPECT_FALSE(queue.Push(std::make_unique<int>(6)));
  EXPECT_FALSE(queue.TryPush(std::make_unique<int>(6)));
  const auto left = queue.Pop();
  ASSERT_TRUE(left.has_value());
  EXPECT_EQ(**left, 5);
  EXPECT_FALSE(queue.Pop().has_value());
}

TEST(BoundedQueue, CloseWakesEveryWaiter) {
  BoundedQueue<int> full(1);
  BoundedQueue<int> empty(1);
  ASSERT_TRUE(full.Push(0));
  std::thread producer([&] { EXPECT_FALSE(full.Push(1)); });
  std::thread consumer([&] { EXPECT_FALSE(empty.Pop().has_value()); });
  full.Close();
  empty.Close();
  producer.join();
  consumer.join();
}

TEST(BoundedQueue, LosesNothingBetweenManyThreads) {
  constexpr int kEach = 2000;
  BoundedQueue<int> queue(3);
  std::atomic<int64_t> sum{0};
  std::vector<std::thread> producers;
  std::vector<std::thread> consumers;
  for (int t = 0; t < 3; ++t) {
    producers.emplace_back([&] {
      for (int i = 1; i <= kEach; ++i) {
        EXPECT_TRUE(queue.Push(i));
      }
    });
    consumers.emplace_back([&] {
      while (const auto item = queue.Pop()) {
        sum += *item;
      }
    });
  }
  for (std::thread& producer : producers) {
    producer.join();
  }
  queue.Close();
  for (std::thread& consumer : consumers) {
    consumer.join();
  }
  EXPECT_EQ(sum.load(), int64_t{3} * kEach * (kEach + 1) / 2);
}

}  // namespace
}  // namespace dtrain::bounded_queue_test
