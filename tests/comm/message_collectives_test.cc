// MessageCollectives over socket pairs inside one process, with faults injected at the Transport.
#include "comm/collectives/message_collectives.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "comm/transport/faulty_transport.h"
#include "comm/transport/stream_transport.h"

namespace dtrain::comm {
namespace {

constexpr int kSize = 3;

// The ends of a socket between each two ranks.
struct Wires {
  std::map<std::pair<int, int>, UniqueFd> end;
  Wires() {
    for (int a = 0; a < kSize; ++a) {
      for (int b = a + 1; b < kSize; ++b) {
        int fds[2];
        EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
        end[{a, b}] = UniqueFd(fds[0]);
        end[{b, a}] = UniqueFd(fds[1]);
      }
    }
  }
  std::unique_ptr<Transport> TransportOf(int rank) {
    std::vector<StreamPeer> peers(kSize);
    for (int peer = 0; peer < kSize; ++peer) {
      peers[static_cast<size_t>(peer)].name = "rank " + std::to_string(peer);
      if (peer != rank) {
        peers[static_cast<size_t>(peer)].data.push_back(
            std::make_unique<PlainChannel>(end[{rank, peer}].get()));
      }
    }
    return std::make_unique<StreamTransport>(rank, std::move(peers),
                                             [](int) { return absl::OkStatus(); });
  }
};

// Every rank all-reduces `count` floats of value rank + 1; `fault` is injected at rank 1.
std::vector<absl::Status> AllReduceWith(const TransportFault& fault, absl::Duration timeout,
                                        std::array<std::vector<float>, kSize>& values, size_t count,
                                        Algorithm algorithm = Algorithm::kDirect) {
  Wires wires;
  std::vector<absl::Status> results(kSize);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kSize; ++rank) {
    ranks.emplace_back([&, rank, transport = wires.TransportOf(rank)]() mutable {
      if (rank == 1) {
        transport = std::make_unique<FaultyTransport>(std::move(transport), fault);
      }
      MessageCollectives collectives(std::move(transport),
                                     {.name = "test", .algorithm = algorithm});
      auto& mine = values[static_cast<size_t>(rank)];
      mine.assign(count, static_cast<float>(rank + 1));
      const Buffer buffer{mine.data(), count * 4};
      CallHeader header;
      header.sequence = 1;
      header.kind = CallKind::kAllReduce;
      header.bytes = buffer.bytes;
      const auto never = [] { return absl::OkStatus(); };
      const auto spin = [] { return false; };
      const absl::Status status =
          collectives.Run({.header = header, .input = buffer, .output = buffer},
                          WaitContext{Deadline::After(timeout), never, spin});
      if (!status.ok()) {
        collectives.Break(status);
      }
      results[static_cast<size_t>(rank)] = status;
    });
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
  return results;
}

class MessageCollectivesTest : public ::testing::TestWithParam<Algorithm> {};
INSTANTIATE_TEST_SUITE_P(Algorithms, MessageCollectivesTest,
                         ::testing::Values(Algorithm::kDirect, Algorithm::kRing),
                         [](const ::testing::TestParamInfo<Algorithm>& tested) {
                           return tested.param == Algorithm::kRing ? "Ring" : "Direct";
                         });

TEST_P(MessageCollectivesTest, ManyChunksGiveTheSum) {
  std::array<std::vector<float>, kSize> values;
  for (const absl::Status& status :
       AllReduceWith({}, absl::Seconds(30), values, (size_t{3} << 20) + 5, GetParam())) {
    EXPECT_TRUE(status.ok()) << status;
  }
  for (const auto& mine : values) {
    for (const float value : mine) {
      ASSERT_EQ(value, 6.0F);
    }
  }
}

TEST_P(MessageCollectivesTest, ABrokenTransportEndsAllRanks) {
  for (const int at_move : {0, 1, 2, 3}) {
    std::array<std::vector<float>, kSize> values;
    const auto results =
        AllReduceWith({.at_move = at_move, .error = absl::UnavailableError("cable cut")},
                      absl::Seconds(30), values, size_t{3} << 20, GetParam());
    for (const absl::Status& status : results) {
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    }
  }
}

TEST_P(MessageCollectivesTest, ASlowTransportOnlyDelays) {
  std::array<std::vector<float>, kSize> values;
  for (const absl::Status& status :
       AllReduceWith({.at_move = 0, .error = {}, .delay = absl::Milliseconds(20)},
                     absl::Seconds(30), values, 1000, GetParam())) {
    EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(values[0][999], 6.0F);
}

TEST_P(MessageCollectivesTest, AnAlteredHeaderIsNoticed) {
  std::array<std::vector<float>, kSize> values;
  const auto results = AllReduceWith({.at_move = 0, .flip_byte_from_peer = 0}, absl::Seconds(30),
                                     values, 1000, GetParam());
  EXPECT_EQ(results[1].code(), absl::StatusCode::kFailedPrecondition) << results[1];
}

}  // namespace
}  // namespace dtrain::comm
