#include "comm/net/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/net/key_values.h"
#include "comm/net/store_client.h"
#include "comm/net/store_server.h"

namespace dtrain::comm::store_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Deadline Soon() { return Deadline::After(absl::Seconds(30)); }

// A store of each kind; the remote one has a client of its own for each call of Client.
class Fixture {
 public:
  explicit Fixture(bool remote) : key_(JobKey::Generate().value()) {
    if (remote) {
      server_ = StoreServer::Create("127.0.0.1", 0, key_, 1).value();
    } else {
      memory_ = NewMemoryStore();
    }
  }
  std::shared_ptr<Store> Client() {
    if (memory_ != nullptr) {
      return memory_;
    }
    return StoreClient::Connect(server_->endpoint(), key_, {.epoch = 1, .name = "test"}, Soon())
        .value();
  }
  StoreServer* server() { return server_.get(); }
  const JobKey& key() const { return key_; }

 private:
  JobKey key_;
  std::unique_ptr<StoreServer> server_;
  std::shared_ptr<Store> memory_;
};

class StoreTest : public ::testing::TestWithParam<bool> {
 protected:
  Fixture fixture_{GetParam()};
  std::shared_ptr<Store> store_ = fixture_.Client();
};
INSTANTIATE_TEST_SUITE_P(All, StoreTest, ::testing::Bool(),
                         [](const auto& kind) { return kind.param ? "Remote" : "Memory"; });

TEST_P(StoreTest, GivesWhatWasSet) {
  ASSERT_TRUE(store_->Set("a", "1", Soon()).ok());
  ASSERT_TRUE(store_->Set("a", absl::string_view("x\0y", 3), Soon()).ok());
  EXPECT_EQ(store_->Get("a", Soon()).value(), std::string("x\0y", 3));
  ASSERT_TRUE(store_->Set("empty", "", Soon()).ok());
  EXPECT_EQ(store_->Get("empty", Soon()).value(), "");
}

TEST_P(StoreTest, CarriesTheLargestValueAndRefusesALargerOne) {
  std::string value(kStoreValueBytesMax, 'v');
  value.back() = '!';
  ASSERT_TRUE(store_->Set("large", value, Soon()).ok());
  EXPECT_TRUE(store_->Get("large", Soon()).value() == value);
  const absl::Status refused = store_->Set("larger", value + "x", Soon());
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("key \"larger\" has 1048577 bytes; allowed: at most 1048576 (1 MiB)"));
  EXPECT_FALSE(store_->Set("", "x", Soon()).ok());
  EXPECT_FALSE(store_->Set(std::string(kStoreKeyBytesMax + 1, 'k'), "x", Soon()).ok());
  EXPECT_TRUE(store_->Set(std::string(kStoreKeyBytesMax, 'k'), "x", Soon()).ok());
}

TEST_P(StoreTest, GetThatTimesOutNamesTheKey) {
  const auto value = store_->Get("ncclid/7", Deadline::After(absl::Milliseconds(30)));
  EXPECT_EQ(value.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(value.status().message()), HasSubstr("\"ncclid/7\""));
  // The connection still works.
  ASSERT_TRUE(store_->Set("ncclid/7", "late", Soon()).ok());
  EXPECT_EQ(store_->Get("ncclid/7", Soon()).value(), "late");
}

TEST_P(StoreTest, WaitingGetHoldsUpNoOtherThread) {
  std::vector<std::thread> waiters;
  std::atomic<int> got{0};
  for (int i = 0; i < 8; ++i) {
    waiters.emplace_back([&, i] {
      got += store_->Get(absl::StrCat("later/", i), Soon()).value_or("") == "now" ? 1 : 0;
    });
  }
  for (int i = 7; i >= 0; --i) {  // The same connection as the waiting calls.
    ASSERT_TRUE(store_->Set(absl::StrCat("later/", i), "now", Soon()).ok());
  }
  for (std::thread& waiter : waiters) {
    waiter.join();
  }
  EXPECT_EQ(got, 8);
}

TEST_P(StoreTest, AddIsAtomicAcrossClients) {
  constexpr int kThreads = 4;
  constexpr int kAdds = 200;
  std::vector<std::thread> threads;
  std::vector<std::vector<int64_t>> seen(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const auto own = fixture_.Client();
      for (int i = 0; i < kAdds; ++i) {
        seen[static_cast<size_t>(t)].push_back(own->Add("count", 1, Soon()).value());
      }
    });
  }
  std::set<int64_t> all;
  for (int t = 0; t < kThreads; ++t) {
    threads[static_cast<size_t>(t)].join();
    all.insert(seen[static_cast<size_t>(t)].begin(), seen[static_cast<size_t>(t)].end());
  }
  EXPECT_EQ(all.size(), size_t{kThreads * kAdds});
  EXPECT_EQ(*all.rbegin(), kThreads * kAdds);
  EXPECT_EQ(store_->Get("count", Soon()).value(), "800");
  EXPECT_EQ(store_->Add("count", -801, Soon()).value(), -1);
}

TEST_P(StoreTest, AddRefusesTextAndOverflow) {
  ASSERT_TRUE(store_->Set("text", "abc", Soon()).ok());
  EXPECT_EQ(store_->Add("text", 1, Soon()).status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(store_->Set("full", "9223372036854775807", Soon()).ok());
  EXPECT_EQ(store_->Add("full", 1, Soon()).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(store_->Get("full", Soon()).value(), "9223372036854775807");
}

TEST_P(StoreTest, CompareExchangeLetsOneWin) {
  auto first = store_->CompareExchange("leader", std::nullopt, "a", Soon()).value();
  EXPECT_TRUE(first.exchanged);
  auto second = store_->CompareExchange("leader", std::nullopt, "b", Soon()).value();
  EXPECT_FALSE(second.exchanged);
  EXPECT_EQ(second.value, "a");
  EXPECT_TRUE(store_->CompareExchange("leader", "a", "c", Soon()).value().exchanged);
  EXPECT_FALSE(store_->CompareExchange("none", "a", "c", Soon()).value().exchanged);
  EXPECT_EQ(store_->Get("leader", Soon()).value(), "c");
}

TEST_P(StoreTest, WaitEndsWhenTheLastKeyCame) {
  const std::vector<std::string> keys = {"w/0", "w/1", "w/1", "w/2"};
  absl::Status waited = absl::UnknownError("not yet");
  std::thread waiter([&] { waited = store_->Wait(keys, Soon()); });
  for (const char* key : {"w/2", "w/0", "w/1"}) {
    ASSERT_TRUE(store_->Set(key, "", Soon()).ok());
  }
  waiter.join();
  EXPECT_TRUE(waited.ok()) << waited;
  EXPECT_TRUE(store_->Wait({}, Soon()).ok());
}

TEST_P(StoreTest, WaitThatTimesOutNamesTheMissingKeys) {
  ASSERT_TRUE(store_->Set("w/0", "", Soon()).ok());
  const std::vector<std::string> keys = {"w/0", "w/1", "w/2"};
  const absl::Status waited = store_->Wait(keys, Deadline::After(absl::Milliseconds(30)));
  EXPECT_EQ(waited.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(waited.message()), HasSubstr("keys \"w/1\", \"w/2\""));
  std::vector<std::string> many;
  for (int i = 1; i <= 8; ++i) {
    many.push_back(absl::StrCat("w/", i));
  }
  EXPECT_THAT(std::string(store_->Wait(many, Deadline::After(absl::Milliseconds(30))).message()),
              HasSubstr("\"w/4\", \"w/5\" and 3 more, which nobody set"));
}

TEST_P(StoreTest, CheckAndDeleteTellWhatExists) {
  ASSERT_TRUE(store_->Set("b", "", Soon()).ok());
  const std::vector<std::string> keys = {"a", "b"};
  EXPECT_THAT(store_->Check(keys, Soon()).value(), ElementsAre(false, true));
  EXPECT_TRUE(store_->Delete("b", Soon()).value());
  EXPECT_FALSE(store_->Delete("b", Soon()).value());
  EXPECT_THAT(store_->Check(keys, Soon()).value(), ElementsAre(false, false));
}

TEST_P(StoreTest, ChecksAsManyKeysAtOnceAsAWorldMayHaveRanks) {
  constexpr int kRanks = kStoreKeysMax;
  ASSERT_TRUE(store_->Set(RankKey("r", kRanks - 1), "", Soon()).ok());
  const auto missing = MissingRanks(*store_, "r", kRanks, Soon());
  ASSERT_TRUE(missing.ok()) << missing.status();
  EXPECT_EQ(missing->size(), kStoreKeysMax - 1);
  EXPECT_EQ(missing->back(), kRanks - 2);
}

TEST_P(StoreTest, PrefixStoresDoNotSeeEachOther) {
  const auto one = NewPrefixStore(store_, "epoch-1");
  const auto two = NewPrefixStore(store_, "epoch-2");
  ASSERT_TRUE(one->Set("k", "1", Soon()).ok());
  ASSERT_TRUE(two->Set("k", "2", Soon()).ok());
  EXPECT_EQ(one->Get("k", Soon()).value(), "1");
  EXPECT_EQ(store_->Get("epoch-2/k", Soon()).value(), "2");
}

TEST_P(StoreTest, EveryCallOfAPrefixStoreStaysBelowItsPrefix) {
  const auto one = NewPrefixStore(store_, "p");
  EXPECT_EQ(one->Add("n", 5, Soon()).value(), 5);
  EXPECT_EQ(store_->Get("p/n", Soon()).value(), "5");
  EXPECT_TRUE(one->CompareExchange("x", std::nullopt, "a", Soon()).value().exchanged);
  EXPECT_EQ(store_->Get("p/x", Soon()).value(), "a");
  ASSERT_TRUE(store_->Set("outside", "", Soon()).ok());
  const std::vector<std::string> keys = {"n", "outside"};
  EXPECT_THAT(one->Check(keys, Soon()).value(), ElementsAre(true, false));
  EXPECT_TRUE(absl::IsDeadlineExceeded(one->Wait(keys, Deadline::After(absl::Milliseconds(5)))));
  EXPECT_TRUE(one->Wait({keys.data(), 1}, Soon()).ok());
  EXPECT_FALSE(one->Delete("outside", Soon()).value());
  EXPECT_TRUE(one->Delete("n", Soon()).value());
  EXPECT_THAT(store_->Check(std::vector<std::string>{"p/n", "outside"}, Soon()).value(),
              ElementsAre(false, true));
}

TEST_P(StoreTest, AWaitForOneKeySaysSoInTheSingular) {
  const absl::Status waited =
      store_->Wait(std::vector<std::string>{"only"}, Deadline::After(absl::Milliseconds(5)));
  EXPECT_THAT(std::string(waited.message()), HasSubstr(" for key \"only\", which nobody set"));
}

TEST_P(StoreTest, WhoIsStillToComeIsSaidWhileOthersWait) {
  EXPECT_EQ(RanksToCome(*store_, "meet", 3, "the store"),
            "0 of 3 ranks have come to the store; still to come: ranks 0, 1, 2");
  ASSERT_TRUE(store_->Set(RankKey("meet", 0), "", Soon()).ok());
  ASSERT_TRUE(store_->Set(RankKey("meet", 2), "", Soon()).ok());
  EXPECT_EQ(RanksToCome(*store_, "meet", 3, "the store"),
            "2 of 3 ranks have come to the store; still to come: rank 1");
  ASSERT_TRUE(store_->Set(RankKey("meet", 1), "", Soon()).ok());
  EXPECT_EQ(RanksToCome(*store_, "meet", 3, "the store"), "");
}

TEST(StoreClient, AppendsOfManyClientsGetNumbersWithoutGaps) {
  Fixture fixture(/*remote=*/true);
  constexpr int kClients = 8;
  constexpr int kItems = 50;
  std::vector<std::thread> clients;
  for (int client = 0; client < kClients; ++client) {
    clients.emplace_back([&fixture, client] {
      const auto store = StoreClient::Connect(fixture.server()->endpoint(), fixture.key(),
                                              {.epoch = 1, .name = "test"}, Soon())
                             .value();
      for (int item = 0; item < kItems; ++item) {
        EXPECT_GT(store->Append("list", absl::StrCat(client, ":", item), Soon()).value(), item);
      }
    });
  }
  for (std::thread& client : clients) {
    client.join();
  }
  std::set<std::string> items;
  const auto reader = fixture.Client();
  for (int number = 1; number <= kClients * kItems; ++number) {
    items.insert(reader->Get(ListItemKey("list", number), Soon()).value());
  }
  EXPECT_EQ(items.size(), static_cast<size_t>(kClients * kItems));
  EXPECT_EQ(reader->Get("list", Soon()).value(), absl::StrCat(kClients * kItems));
}

TEST(StoreClient, AnAppendWakesWhoWaitsForTheItem) {
  Fixture fixture(/*remote=*/true);
  const auto store = StoreClient::Connect(fixture.server()->endpoint(), fixture.key(),
                                          {.epoch = 1, .name = "test"}, Soon())
                         .value();
  std::string got;
  std::thread waiter([&] { got = fixture.Client()->Get("list/1", Soon()).value(); });
  EXPECT_EQ(store->Append("list", "first", Soon()).value(), 1);
  waiter.join();
  EXPECT_EQ(got, "first");
  const absl::Status large =
      store->Append("list", std::string(kStoreValueBytesMax + 1, 'v'), Soon()).status();
  EXPECT_THAT(std::string(large.message()), HasSubstr("allowed: at most 1048576 (1 MiB)"));
  EXPECT_EQ(store->Append("list", "second", Soon()).value(), 2);
}

TEST(KeyValues, AnItemForWhichThereIsNoRoomTakesNoNumber) {
  KeyValues values(1000);
  EXPECT_EQ(values.Append("list", "a").value(), 1);
  EXPECT_EQ(values.Append("list", std::string(1000, 'x')).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(values.Append("list", "b").value(), 2);
  EXPECT_EQ(*values.Find("list/2"), "b");
  ASSERT_TRUE(values.Set("text", "no number").ok());
  EXPECT_FALSE(values.Append("text", "c").ok());
}

TEST(NameRanks, NamesEightAndCountsTheRest) {
  EXPECT_EQ(NameRanks({5}), "rank 5");
  EXPECT_EQ(NameRanks({0, 1, 2, 3, 4, 5, 6, 7}), "ranks 0, 1, 2, 3, 4, 5, 6, 7");
  EXPECT_EQ(NameRanks({0, 1, 2, 3, 4, 5, 6, 7, 9, 11}), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more");
}

TEST(KeyValues, AreFullAtTheirLastByteAndNotBefore) {
  KeyValues probe(1 << 20);
  ASSERT_TRUE(probe.Set("key", std::string(100, 'x')).ok());
  const size_t needed = probe.bytes();
  EXPECT_GT(needed, 103U);
  KeyValues exact(needed);
  EXPECT_TRUE(exact.Set("key", std::string(100, 'x')).ok());
  EXPECT_FALSE(exact.Set("key", std::string(101, 'x')).ok());
  EXPECT_EQ(exact.bytes(), needed) << "a refused value leaves the old one";
  EXPECT_EQ(*exact.Find("key"), std::string(100, 'x'));
  EXPECT_TRUE(exact.Set("key", "y").ok());
  EXPECT_EQ(exact.bytes(), needed - 99);
}

TEST_P(StoreTest, MissingRanksAreNamed) {
  ASSERT_TRUE(store_->Set(RankKey("ready", 0), "", Soon()).ok());
  ASSERT_TRUE(store_->Set(RankKey("ready", 2), "", Soon()).ok());
  EXPECT_THAT(MissingRanks(*store_, "ready", 4, Soon()).value(), ElementsAre(1, 3));
  const absl::Status waited =
      WaitForRanks(*store_, "ready", 4, Deadline::After(absl::Milliseconds(30)));
  EXPECT_EQ(waited.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(waited.message()), HasSubstr("2 of 4 ranks did not arrive"));
  EXPECT_THAT(std::string(waited.message()), HasSubstr("ranks 1, 3"));
  ASSERT_TRUE(store_->Set(RankKey("ready", 1), "", Soon()).ok());
  ASSERT_TRUE(store_->Set(RankKey("ready", 3), "", Soon()).ok());
  EXPECT_TRUE(WaitForRanks(*store_, "ready", 4, Soon()).ok());
}

TEST(KeyValues, ValuesThatTakeEachOthersPlaceTakeItOnce) {
  KeyValues values(10000);
  // 600,000 bytes in all, of which the store holds 6,000 at a time.
  for (size_t i = 0; i < 100; ++i) {
    const absl::Status set = values.Set("a", std::string(6000 + i % 2, 'a'));
    ASSERT_TRUE(set.ok()) << i << ": " << set;
  }
  EXPECT_EQ(values.Set("b", std::string(5000, 'b')).code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(values.Set("a", "").ok());
  EXPECT_TRUE(values.Set("b", std::string(5000, 'b')).ok());
  EXPECT_TRUE(values.Delete("a"));
  EXPECT_TRUE(values.Delete("b"));
  EXPECT_EQ(values.bytes(), 0U);
}

}  // namespace
}  // namespace dtrain::comm::store_test
