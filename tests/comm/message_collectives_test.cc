// MessageCollectives over socket pairs inside one process, with faults injected at the Transport.
#include "comm/collectives/message_collectives.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "comm/transport/faulty_transport.h"
#include "comm/transport/stream_transport.h"

namespace dtrain::comm::message_collectives_test {
namespace {

constexpr int kSize = 3;

// The ends of sockets between all pairs of ranks.
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

// Counts the transfers that its transport is asked to begin ahead of the next Move.
class CountingTransport final : public Transport {
 public:
  CountingTransport(std::unique_ptr<Transport> inner, std::vector<size_t>& ahead)
      : inner_(std::move(inner)), ahead_(ahead) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  using Transport::Move;
  absl::Status Move(absl::Span<const Transfer> transfers, const WaitContext& context,
                    absl::FunctionRef<void()> meanwhile,
                    absl::Span<const Transfer> ahead) override {
    ahead_.push_back(ahead.size());
    return inner_->Move(transfers, context, meanwhile, ahead);
  }
  void Shutdown(const absl::Status& reason) override { inner_->Shutdown(reason); }
  std::string PeerName(int peer) const override { return inner_->PeerName(peer); }

 private:
  const std::unique_ptr<Transport> inner_;
  std::vector<size_t>& ahead_;
};

CallHeader HeaderOf(uint64_t sequence, CallKind kind, size_t bytes) {
  CallHeader header;
  header.sequence = sequence;
  header.kind = kind;
  header.bytes = bytes;
  return header;
}

// Runs `body` for each rank in a thread of its own, and gives the results by rank.
std::vector<absl::Status> OnAllRanks(
    const std::function<absl::Status(int rank, MessageCollectives&, const WaitContext&)>& body,
    std::vector<size_t>* ahead_of_rank_0 = nullptr) {
  Wires wires;
  std::vector<absl::Status> results(kSize);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kSize; ++rank) {
    ranks.emplace_back([&, rank, transport = wires.TransportOf(rank)]() mutable {
      if (rank == 0 && ahead_of_rank_0 != nullptr) {
        transport = std::make_unique<CountingTransport>(std::move(transport), *ahead_of_rank_0);
      }
      MessageCollectives collectives(std::move(transport), {.name = "test"});
      const auto never = [] { return absl::OkStatus(); };
      const auto spin = [] { return false; };
      const WaitContext context{Deadline::After(absl::Seconds(30)), never, spin};
      const absl::Status status = body(rank, collectives, context);
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

// Calls of all kinds, one after the other; each is shown to the peers during the call before.
TEST(FollowingCallsTest, EveryCallBeginsBehindTheOneBefore) {
  constexpr size_t kCount = 30'000;
  const std::vector<CallKind> kinds = {CallKind::kAllReduce, CallKind::kReduceScatter,
                                       CallKind::kAllReduce, CallKind::kAllGather,
                                       CallKind::kBarrier,   CallKind::kAllReduce};
  std::vector<size_t> ahead;
  const auto results = OnAllRanks(
      [&](int rank, MessageCollectives& collectives, const WaitContext& context) -> absl::Status {
        size_t next = 0;
        const auto header = [&](size_t index) {
          const size_t bytes = kinds[index] == CallKind::kBarrier ? 0 : kCount * 4;
          CallHeader made = HeaderOf(index + 1, kinds[index], bytes);
          made.sum_of_squares = kinds[index] == CallKind::kAllReduce;
          made.root = -1;
          return made;
        };
        collectives.SetFollowing([&]() -> std::optional<CallHeader> {
          return next < kinds.size() ? std::optional(header(next)) : std::nullopt;
        });
        for (size_t i = 0; i < kinds.size(); ++i) {
          next = i + 1;
          std::vector<float> values(kCount, static_cast<float>(rank + 1));
          std::vector<float> part(kCount / kSize, static_cast<float>(rank + 1));
          double squares = 0;
          const Buffer whole{values.data(), kCount * 4};
          const Buffer third{part.data(), part.size() * 4};
          Call call{.header = header(i), .input = whole, .output = whole};
          call.sum_of_squares = call.header.sum_of_squares ? &squares : nullptr;
          if (kinds[i] == CallKind::kReduceScatter) {
            call.output = third;
          } else if (kinds[i] == CallKind::kAllGather) {
            call.input = third;
          }
          DT_RETURN_IF_ERROR(collectives.Run(call, context));
          if (kinds[i] == CallKind::kAllReduce) {
            EXPECT_EQ(values.front(), 6.0F);
            EXPECT_EQ(values.back(), 6.0F);
            EXPECT_EQ(squares, 36.0 * kCount);
          } else if (kinds[i] == CallKind::kReduceScatter) {
            EXPECT_EQ(part.back(), 6.0F);
          } else if (kinds[i] == CallKind::kAllGather) {
            EXPECT_EQ(values.front(), 1.0F);
            EXPECT_EQ(values.back(), 3.0F);
          }
        }
        return absl::OkStatus();
      },
      &ahead);
  for (const absl::Status& status : results) {
    EXPECT_TRUE(status.ok()) << status;
  }
  // Nothing follows the last Move; a barrier consists only of its headers, which the next ones
  // would overwrite.
  EXPECT_EQ(ahead.back(), 0U);
  EXPECT_EQ(std::count(ahead.begin(), ahead.end() - 1, 0U), 1) << "of " << ahead.size();
}

// The first bytes of a call travel with its header. If they do not match the peer's, the error must
// be that the ranks are in different calls.
TEST(FollowingCallsTest, RanksInDifferentCallsAreToldSoThoughTheirBytesCameFirst) {
  for (const bool other_kind : {false, true}) {
    const auto results =
        OnAllRanks([&](int rank, MessageCollectives& collectives, const WaitContext& context) {
          const size_t count = rank == 1 && !other_kind ? 2000 : 3000;
          std::vector<float> values(3000, 1.0F);
          std::vector<float> part(1000);
          const Buffer buffer{values.data(), count * 4};
          Call call{.header = HeaderOf(1, CallKind::kAllReduce, buffer.bytes),
                    .input = buffer,
                    .output = buffer};
          if (rank == 1 && other_kind) {
            call.header.kind = CallKind::kAllGather;
            call.input = {part.data(), part.size() * 4};
          }
          return collectives.Run(call, context);
        });
    for (const absl::Status& status : results) {
      EXPECT_EQ(status.code(), other_kind ? absl::StatusCode::kFailedPrecondition
                                          : absl::StatusCode::kInvalidArgument)
          << status;
    }
  }
}

}  // namespace
}  // namespace dtrain::comm::message_collectives_test
