// Bytes are altered between two ranks on TCP: every all-reduce gives the exact sum or an error that
// names the peer, and none hangs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/numeric/prng.h"
#include "base/status.h"
#include "comm/group.h"
#include "comm/net/store.h"
#include "tests/comm/flipping_proxy.h"

namespace dtrain::comm::byte_flips_test {
namespace {

constexpr int kFlips = 10000;
constexpr int kCalls = 6;  // All-reduces of one group.
// Bytes of the handshake in each direction (comm/net/data_handshake.h).
constexpr int64_t kHandshakeToServer = 68 + 32;
constexpr int64_t kHandshakeToClient = 72 + 1;
// An offset beyond all bytes of a test.
constexpr int64_t kNoFlip = int64_t{1} << 40;
// A rank that waits this long counts as hanging.
constexpr absl::Duration kHang = absl::Seconds(20);

// The store as rank 1 sees it: rank 0's data listener is behind a proxy.
class StoreThroughProxy final : public Store {
 public:
  StoreThroughProxy(Store* base, const FlipPlan& plan) : base_(base), plan_(plan) {}
  int flips() const { return proxy_.has_value() ? proxy_->flips() : 0; }

  absl::StatusOr<std::string> Get(absl::string_view key, Deadline deadline) override {
    DT_ASSIGN_OR_RETURN(std::string value, base_->Get(key, deadline));
    if (!absl::EndsWith(key, "/tcp/0")) {
      return value;
    }
    DT_ASSIGN_OR_RETURN(const Endpoint rank0, ParseEndpoint(value));
    proxy_.emplace(rank0, plan_);
    return proxy_->endpoint().ToString();
  }
  absl::Status Set(absl::string_view key, absl::string_view value, Deadline deadline) override {
    return base_->Set(key, value, deadline);
  }
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta, Deadline deadline) override {
    return base_->Add(key, delta, deadline);
  }
  absl::StatusOr<Exchange> CompareExchange(absl::string_view key,
                                           std::optional<absl::string_view> expected,
                                           absl::string_view desired, Deadline deadline) override {
    return base_->CompareExchange(key, expected, desired, deadline);
  }
  absl::Status Wait(absl::Span<const std::string> keys, Deadline deadline) override {
    return base_->Wait(keys, deadline);
  }
  absl::StatusOr<std::vector<bool>> Check(absl::Span<const std::string> keys,
                                          Deadline deadline) override {
    return base_->Check(keys, deadline);
  }
  absl::StatusOr<bool> Delete(absl::string_view key, Deadline deadline) override {
    return base_->Delete(key, deadline);
  }

 private:
  Store* const base_;
  const FlipPlan plan_;
  std::optional<FlippingProxy> proxy_;
};

// The results of one rank.
struct Seen {
  std::unique_ptr<Group> group;  // Kept until the other rank is done too.
  int exact_sums = 0;
  std::string wrong;              // The first wrong element, or "".
  absl::Status error = {};        // The error that ended its calls.
  absl::Duration call_time = {};  // The longest call.
};

// The value of rank `rank` in all-reduce `call`: a whole number, so that sums are exact in fp32.
float ValueAt(size_t i, int rank, int call) {
  return static_cast<float>(MixBits(i * 64 + static_cast<uint64_t>(call * 2 + rank)) % 100000);
}

void ReduceUntilAnError(Seen& seen, const GroupOptions& options, size_t floats) {
  std::vector<float> values(floats);
  for (int call = 0; call < kCalls; ++call) {
    for (size_t i = 0; i < floats; ++i) {
      values[i] = ValueAt(i, options.rank, call);
    }
    const absl::Time start = absl::Now();
    auto work = seen.group->AllReduce({values.data(), floats * 4}, ReduceOp::kSum);
    seen.error = work.ok() ? work->Wait() : work.status();
    seen.call_time = std::max(seen.call_time, absl::Now() - start);
    if (!seen.error.ok()) {
      return;
    }
    for (size_t i = 0; i < floats; ++i) {
      const float want = ValueAt(i, 0, call) + ValueAt(i, 1, call);
      if (values[i] != want) {
        seen.wrong =
            absl::StrFormat("call %d, element %d is %g, want %g", call, i, values[i], want);
        return;
      }
    }
    ++seen.exact_sums;
  }
}

struct Case {
  FlipPlan plan;
  size_t floats = 0;
  Algorithm algorithm = Algorithm::kAutomatic;
  int connections = 1;
  absl::Duration connect_timeout = absl::Seconds(30);
};

struct Outcome {
  std::array<Seen, 2> ranks;
  int flips = 0;
};

Outcome ReduceThroughProxy(const Case& tested) {
  Outcome outcome;
  const auto store = NewMemoryStore();
  StoreThroughProxy altered(store.get(), tested.plan);
  std::array<std::thread, 2> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks[static_cast<size_t>(rank)] = std::thread([&, rank] {
      GroupOptions options;
      options.rank = rank;
      options.size = 2;
      options.node_id = absl::StrCat("node", rank);
      options.job_key = std::string(32, 'k');
      options.network = Network::kTcp;
      options.timeout = 2 * kHang;
      options.connect_timeout = tested.connect_timeout;
      options.algorithm = tested.algorithm;
      options.link_cost = LinkCost{10, 1, 100, 100, 100};
      options.tcp_connections = tested.connections;
      Seen& seen = outcome.ranks[static_cast<size_t>(rank)];
      auto group = CreateHostGroup(rank == 0 ? store.get() : &altered, options);
      if (!group.ok()) {
        seen.error = group.status();
        return;
      }
      seen.group = *std::move(group);
      ReduceUntilAnError(seen, options, tested.floats);
    });
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
  for (Seen& seen : outcome.ranks) {
    seen.group.reset();
  }
  outcome.flips = altered.flips();
  return outcome;
}

// No wrong sum, no hang, and every error names the other rank.
void Check(const Outcome& outcome) {
  for (int rank = 0; rank < 2; ++rank) {
    const Seen& seen = outcome.ranks[static_cast<size_t>(rank)];
    EXPECT_EQ(seen.wrong, "") << "on rank " << rank;
    EXPECT_LT(seen.call_time, kHang) << "on rank " << rank;
    if (!seen.error.ok()) {
      EXPECT_THAT(std::string(seen.error.message()),
                  ::testing::HasSubstr(absl::StrCat("rank ", 1 - rank)));
    }
  }
}

Case RandomCase(SplitMix64& random) {
  constexpr Algorithm kAlgorithms[] = {Algorithm::kAutomatic, Algorithm::kDirect,
                                       Algorithm::kDoubling, Algorithm::kHalving};
  Case result;
  result.algorithm = kAlgorithms[random.Below(4)];
  // Some groups send several chunks, on connections of their own.
  const bool large = random.Below(32) == 0;
  result.floats = large ? 100000 + random.Below(50000) : 1 + random.Below(3000);
  result.connections = large ? 2 : 1;
  // Either one flip anywhere, or several in consecutive messages.
  const bool single = random.Below(3) == 0;
  const auto bytes = static_cast<int64_t>(result.floats * 4 * (single ? kCalls : 1));
  result.plan = {.seed = random.Next(),
                 .first_to_server = kHandshakeToServer,
                 .first_to_client = kHandshakeToClient,
                 .gap_max = 64 + static_cast<int64_t>(random.Below(static_cast<uint64_t>(bytes))),
                 .flips_max = single ? 1 : 2 + static_cast<int>(random.Below(14))};
  return result;
}

uint64_t PrintedSeed() {
  const auto seed = static_cast<uint64_t>(absl::GetCurrentTimeNanos());
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

// The results of all groups; they mostly wait, so several run at a time.
struct Tally {
  std::mutex mutex;
  int groups = 0;
  int flips = 0;
  int single = 0;  // Groups with one flip.
  int exact_sums = 0;
  int altered = 0;  // Errors that report an altered byte.
  absl::Duration longest;

  // The number of the next group, or none when there were enough flips or a failure.
  std::optional<int> Next() {
    const std::lock_guard lock(mutex);
    if (flips >= kFlips || ::testing::Test::HasFailure()) {
      return std::nullopt;
    }
    return groups++;
  }
  void Add(const Outcome& outcome) {
    const std::lock_guard lock(mutex);
    flips += outcome.flips;
    single += outcome.flips == 1 ? 1 : 0;
    for (const Seen& seen : outcome.ranks) {
      exact_sums += seen.exact_sums;
      altered += absl::IsDataLoss(seen.error) ? 1 : 0;
      longest = std::max(longest, seen.call_time);
    }
  }
};

TEST(ByteFlipsTest, TenThousandGiveExactSumsOrErrorsThatNameThePeer) {
  const uint64_t seed = PrintedSeed();
  Tally tally;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([seed, &tally] {
      while (const std::optional<int> group = tally.Next()) {
        SCOPED_TRACE(absl::StrFormat("seed %d, group %d", seed, *group));
        SplitMix64 random(MixBits(seed + static_cast<uint64_t>(*group)));
        const Outcome outcome = ReduceThroughProxy(RandomCase(random));
        Check(outcome);
        // An altered byte that arrives must also be noticed.
        const std::array<Seen, 2>& ranks = outcome.ranks;
        EXPECT_EQ(!ranks[0].error.ok() || !ranks[1].error.ok(), outcome.flips > 0)
            << ranks[0].error << "; " << ranks[1].error;
        tally.Add(outcome);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  std::printf(
      "%d flips in %d groups (%d with one), %d exact sums, %d errors of altered bytes, "
      "longest call %s\n",
      tally.flips, tally.groups, tally.single, tally.exact_sums, tally.altered,
      absl::FormatDuration(tally.longest).c_str());
  EXPECT_GE(tally.flips, kFlips);
  EXPECT_GT(tally.exact_sums, tally.groups / 4);
  EXPECT_GT(tally.altered, tally.groups / 2);
  EXPECT_GT(tally.single, tally.groups / 8);
}

TEST(ByteFlipsTest, AProxyThatAltersNothingChangesNothing) {
  SplitMix64 random(PrintedSeed());
  for (int i = 0; i < 20; ++i) {
    Case tested = RandomCase(random);
    tested.plan.gap_max = 0;
    const Outcome outcome = ReduceThroughProxy(tested);
    for (const Seen& seen : outcome.ranks) {
      EXPECT_TRUE(seen.error.ok()) << seen.error;
      EXPECT_EQ(seen.wrong, "");
      EXPECT_EQ(seen.exact_sums, kCalls);
    }
  }
}

// If a proof or an option is altered, there is no group, or one with intact connections.
TEST(ByteFlipsTest, InTheHandshakeGiveAnErrorOrAWholeConnection) {
  SplitMix64 random(PrintedSeed());
  for (int i = 0; i < 12; ++i) {
    Case tested = RandomCase(random);
    tested.connect_timeout = absl::Seconds(1);
    const bool to_server = i % 2 == 0;
    tested.plan.first_to_server = to_server ? 0 : kNoFlip;
    tested.plan.first_to_client = to_server ? kNoFlip : 0;
    tested.plan.gap_max = to_server ? kHandshakeToServer : kHandshakeToClient;
    tested.plan.flips_max = 1;
    const Outcome outcome = ReduceThroughProxy(tested);
    EXPECT_EQ(outcome.flips, 1);
    Check(outcome);
  }
}

}  // namespace
}  // namespace dtrain::comm::byte_flips_test
