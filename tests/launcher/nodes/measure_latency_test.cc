// Ranks that measure the latencies between their hosts, as threads over real connections.
#include "launcher/nodes/measure_latency.h"

#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/net/store_client.h"
#include "comm/net/store_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::launcher::measure_latency_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(PartnerIn, EachTwoRanksMeetOnceAndNobodyHasTwoOthersAtATime) {
  for (int size = 2; size <= 33; ++size) {
    std::set<std::pair<int, int>> met;
    for (int round = 0; round < MeasuringRounds(size); ++round) {
      for (int rank = 0; rank < size; ++rank) {
        const int partner = PartnerIn(round, rank, size);
        if (partner < 0) {
          continue;
        }
        EXPECT_NE(partner, rank);
        EXPECT_EQ(PartnerIn(round, partner, size), rank) << size << " ranks, round " << round;
        if (rank < partner) {
          EXPECT_TRUE(met.emplace(rank, partner).second);
        }
      }
    }
    EXPECT_EQ(met.size(), static_cast<size_t>(size * (size - 1) / 2)) << size << " ranks";
  }
}

class MeasureLatency : public ::testing::Test {
 protected:
  // All ranks, whose hosts have these names, and the last part of whose addresses is that of
  // `addresses`; the result of rank 0.
  absl::StatusOr<std::optional<Latencies>> Measure(const std::vector<std::string>& hosts,
                                                   const std::vector<int>& addresses) {
    std::vector<absl::StatusOr<std::optional<Latencies>>> results(
        hosts.size(), absl::StatusOr<std::optional<Latencies>>(std::optional<Latencies>()));
    std::vector<std::thread> ranks;
    for (size_t rank = 0; rank < hosts.size(); ++rank) {
      ranks.emplace_back([&, rank] {
        const Deadline deadline = Deadline::After(absl::Seconds(60));
        const int number = static_cast<int>(rank);
        const auto store = comm::StoreClient::Connect(
            server_->endpoint(), key_,
            {.epoch = 3, .role = comm::Hello::Role::kRank, .id = number, .name = "rank"}, deadline);
        ASSERT_TRUE(store.ok()) << store.status();
        results[rank] = MeasureBetween({.rank = number,
                                        .size = static_cast<int>(hosts.size()),
                                        .epoch = 3,
                                        .name = hosts[rank],
                                        .address = absl::StrCat("127.0.0.", addresses[rank])},
                                       key_, **store, deadline);
      });
    }
    for (std::thread& rank : ranks) {
      rank.join();
    }
    for (size_t rank = 1; rank < hosts.size(); ++rank) {
      EXPECT_FALSE(results[rank].ok() && results[rank]->has_value()) << "rank 0 has them";
    }
    return results[0];
  }

  const comm::JobKey key_ = *comm::JobKey::Generate();
  const std::unique_ptr<comm::StoreServer> server_ =
      *comm::StoreServer::Create("127.0.0.1", 0, key_, /*epoch=*/3);
};

TEST_F(MeasureLatency, GivesALatencyOfEachPair) {
  const auto measured = Measure({"a", "b", "c"}, {1, 2, 3});
  ASSERT_TRUE(measured.ok() && measured->has_value()) << measured.status();
  const Latencies& latencies = **measured;
  EXPECT_THAT(latencies.hosts, ElementsAre("a", "b", "c"));
  for (size_t a = 0; a < 3; ++a) {
    for (size_t b = a + 1; b < 3; ++b) {
      EXPECT_GT(latencies.us[a][b], 0) << a << " " << b;
      EXPECT_LT(latencies.us[a][b], 1e6);
      EXPECT_LT(latencies.us[b][a], 0) << "one of the two measures";
    }
  }
}

TEST_F(MeasureLatency, TwoRanksOfOneHostAreRefused) {
  const auto measured = Measure({"a", "b", "a"}, {1, 2, 1});
  EXPECT_TRUE(absl::IsFailedPrecondition(measured.status())) << measured.status();
  EXPECT_THAT(std::string(measured.status().message()),
              HasSubstr("ranks 0 and 2 are both on host a"));
}

TEST_F(MeasureLatency, HostsOfOneNameAreNamedByTheirAddresses) {
  const auto measured = Measure({"box", "box"}, {4, 5});
  ASSERT_TRUE(measured.ok() && measured->has_value()) << measured.status();
  EXPECT_THAT((*measured)->hosts, ElementsAre("127.0.0.4", "127.0.0.5"));
}

TEST(MeasureAsRank, OutsideOfAJobItSaysHowToStartIt) {
  const auto measured = MeasureAsRank({});
  EXPECT_TRUE(absl::IsFailedPrecondition(measured.status())) << measured.status();
  EXPECT_THAT(std::string(measured.status().message()),
              HasSubstr("dtrain launch --hostfile HOSTS --nproc-per-node 1 -- dtrain topo"));
}

}  // namespace
}  // namespace dtrain::launcher::measure_latency_test
