// All-reduce between four ranks that have several connections to each other, by every algorithm:
// the same bits on all, those of the pairwise sum.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <map>
#include <thread>
#include <tuple>
#include <vector>

#include "base/numeric/prng.h"
#include "base/unique_fd.h"
#include "comm/collectives/link_cost.h"
#include "comm/collectives/message_collectives.h"
#include "comm/collectives/probe_link.h"
#include "comm/transport/stream_transport.h"

namespace dtrain::comm::connections_test {
namespace {

constexpr int kRanks = 4;
constexpr auto kNever = [] { return absl::OkStatus(); };
constexpr auto kNo = [] { return false; };

WaitContext Soon() { return {Deadline::After(absl::Seconds(30)), kNever, kNo}; }

class Wires {
 public:
  explicit Wires(int connections) : connections_(connections) {
    for (int a = 0; a < kRanks; ++a) {
      for (int b = a + 1; b < kRanks; ++b) {
        for (int c = 0; c < connections; ++c) {
          int fds[2];
          EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
          ends_[{a, b, c}] = UniqueFd(fds[0]);
          ends_[{b, a, c}] = UniqueFd(fds[1]);
        }
      }
    }
  }

  std::unique_ptr<Transport> TransportOf(int rank) {
    std::vector<StreamPeer> peers(kRanks);
    for (int peer = 0; peer < kRanks; ++peer) {
      for (int c = 0; peer != rank && c < connections_; ++c) {
        peers[static_cast<size_t>(peer)].data.push_back(
            std::make_unique<PlainChannel>(ends_[{rank, peer, c}].get()));
      }
    }
    return std::make_unique<StreamTransport>(rank, std::move(peers),
                                             [](int) { return absl::OkStatus(); });
  }

  // Runs `body` on all ranks.
  template <typename Body>
  void OnAll(Body body) {
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks.emplace_back([&, rank] { body(rank, TransportOf(rank)); });
    }
    for (std::thread& rank : ranks) {
      rank.join();
    }
  }

 private:
  const int connections_;
  std::map<std::tuple<int, int, int>, UniqueFd> ends_;
};

using Values = std::vector<float>;

Values InputOf(int rank, size_t count) {
  SplitMix64 random(static_cast<uint64_t>(rank) + 7);
  Values values(count);
  for (float& value : values) {
    value = static_cast<float>(random.Uniform()) - 0.5F;
  }
  return values;
}

std::array<Values, kRanks> AllReduce(size_t count, int connections, Algorithm algorithm,
                                     const LinkCost& cost) {
  std::array<Values, kRanks> values;
  Wires wires(connections);
  wires.OnAll([&](int rank, std::unique_ptr<Transport> transport) {
    Values& own = values[static_cast<size_t>(rank)];
    own = InputOf(rank, count);
    MessageCollectives collectives(std::move(transport),
                                   {.algorithm = algorithm, .link_cost = cost});
    Call call;
    call.header.kind = CallKind::kAllReduce;
    call.header.bytes = count * sizeof(float);
    call.input = call.output = {own.data(), count * sizeof(float)};
    const absl::Status status = collectives.Run(call, Soon());
    EXPECT_TRUE(status.ok()) << status;
  });
  return values;
}

TEST(ConnectionsTest, EveryAlgorithmOverAnyNumberOfConnectionsSumsPairsOfPairs) {
  for (const size_t count : {size_t{1}, size_t{1000}, size_t{300001}, size_t{2100000}}) {
    std::array<Values, kRanks> inputs;
    for (int rank = 0; rank < kRanks; ++rank) {
      inputs[static_cast<size_t>(rank)] = InputOf(rank, count);
    }
    Values want(count);
    for (size_t i = 0; i < count; ++i) {
      want[i] = (inputs[0][i] + inputs[1][i]) + (inputs[2][i] + inputs[3][i]);
    }
    for (const int connections : {1, 3}) {
      for (const Algorithm algorithm : {Algorithm::kDoubling, Algorithm::kHalving}) {
        for (const Values& got : AllReduce(count, connections, algorithm, {})) {
          EXPECT_TRUE(got == want) << count;
        }
      }
      // With a huge cost of a step and free messages, direct is chosen because it has the fewest
      // steps.
      for (const Values& got :
           AllReduce(count, connections, Algorithm::kAutomatic, {1e9, 0, 1, 1, 1})) {
        EXPECT_TRUE(got == want) << count;
      }
    }
  }
}

TEST(ConnectionsTest, StripesCoverAMessageOnceAndShortOnesStayWhole) {
  for (const size_t bytes : {size_t{0}, size_t{1}, kStripeBytesMin - 1, kStripeBytesMin,
                             kStripeBytesMin + 13, size_t{10} << 20}) {
    for (const size_t connections : {size_t{1}, size_t{2}, size_t{3}, size_t{16}}) {
      size_t next = 0;
      for (size_t i = 0; i < connections; ++i) {
        const Slice part = StripeOf(bytes, connections, i);
        EXPECT_TRUE(part.count == 0 || part.start == next);
        EXPECT_TRUE(bytes >= kStripeBytesMin || i == 0 || part.count == 0);
        next += part.count;
      }
      EXPECT_EQ(next, bytes);
    }
  }
}

TEST(ProbeLinkTest, GivesEveryRankTheSameCosts) {
  std::array<LinkCost, kRanks> costs;
  Wires wires(2);
  wires.OnAll([&](int rank, const std::unique_ptr<Transport>& transport) {
    const auto cost = ProbeLink(*transport, Soon());
    ASSERT_TRUE(cost.ok()) << cost.status();
    costs[static_cast<size_t>(rank)] = *cost;
  });
  EXPECT_GT(costs[0].step_us, 0);
  EXPECT_GT(costs[0].pair_us_per_mib, 0);
  EXPECT_GT(costs[0].sum_us_per_mib, 0);
  for (const LinkCost& cost : costs) {
    const LinkCost both = Slower(cost, costs[0]);
    EXPECT_EQ(both.step_us, cost.step_us);
    EXPECT_EQ(both.message_us, cost.message_us);
    EXPECT_EQ(both.pair_us_per_mib, cost.pair_us_per_mib);
    EXPECT_EQ(both.all_us_per_mib, cost.all_us_per_mib);
    EXPECT_EQ(both.sum_us_per_mib, cost.sum_us_per_mib);
  }
}

}  // namespace
}  // namespace dtrain::comm::connections_test
