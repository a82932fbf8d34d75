#include "comm/call_timeout.h"

#include <gtest/gtest.h>

#include <optional>

#include "absl/strings/str_cat.h"

namespace dtrain::comm::call_timeout_test {
namespace {

constexpr TimeoutLimits kLimits{.most = absl::Minutes(10), .least = absl::Seconds(10)};

CallHeader Named(CallKind kind, absl::string_view name) {
  CallHeader header;
  header.kind = kind;
  SetName(header, name);
  return header;
}

void ObserveTimes(CallTimeouts& timeouts, const CallHeader& header, absl::Duration duration,
                  int64_t times) {
  for (int64_t i = 0; i < times; ++i) {
    timeouts.Observe(header, duration);
  }
}

TEST(CallTimeoutTest, TheFirstCallHasTheConfiguredLimitAndTheNextAMinute) {
  EXPECT_EQ(CallTimeout(kLimits, 0, absl::ZeroDuration()), absl::Minutes(10));
  for (int64_t calls = 1; calls < kFirstCalls; ++calls) {
    EXPECT_EQ(CallTimeout(kLimits, calls, absl::Milliseconds(1)), absl::Minutes(1));
    EXPECT_EQ(CallTimeout(kLimits, calls, absl::Seconds(30)), absl::Seconds(150));
  }
  EXPECT_EQ(CallTimeout(kLimits, kFirstCalls, absl::Milliseconds(1)), absl::Seconds(10));
}

TEST(CallTimeoutTest, TheMinuteOfEarlyCallsIsNeitherAboveMostNorBelowLeast) {
  const TimeoutLimits brief{.most = absl::Seconds(30), .least = absl::Seconds(1)};
  EXPECT_EQ(CallTimeout(brief, 1, absl::ZeroDuration()), absl::Seconds(30));
  const TimeoutLimits patient{.most = absl::Minutes(10), .least = absl::Minutes(3)};
  EXPECT_EQ(CallTimeout(patient, 1, absl::ZeroDuration()), absl::Minutes(3));
}

TEST(CallTimeoutTest, ALearntLimitIsFiveTimesTheLongestBetweenLeastAndMost) {
  const auto learnt = [](absl::Duration longest) { return CallTimeout(kLimits, 1000, longest); };
  EXPECT_EQ(learnt(absl::ZeroDuration()), absl::Seconds(10));
  EXPECT_EQ(learnt(absl::Seconds(2)), absl::Seconds(10));
  EXPECT_EQ(learnt(absl::Seconds(3)), absl::Seconds(15));
  EXPECT_EQ(learnt(absl::Minutes(2)), absl::Minutes(10));
  EXPECT_EQ(learnt(absl::Minutes(20)), absl::Minutes(10));
}

TEST(CallTimeoutTest, NothingIsLearntWhereTheLeastIsTheMost) {
  const TimeoutLimits fixed{.most = absl::Seconds(3), .least = absl::Seconds(10)};
  EXPECT_EQ(CallTimeout(fixed, 1000, absl::Seconds(1)), absl::Seconds(3));
}

// Each try may take up to four times 4.096 us x 2^exponent.
TEST(RetryBudgetTest, IsWhatTheDeviceMayTakeUntilItGivesUp) {
  const auto seconds = [](int timeout, int retries) {
    return absl::ToDoubleSeconds(RetryBudget({.timeout = timeout, .retries = retries}));
  };
  EXPECT_NEAR(seconds(18, 6), 30.06, 0.01) << "comm.rdma's defaults: 7 tries of 1.07 s to 4.29 s";
  EXPECT_NEAR(seconds(20, 7), 137.44, 0.01) << "NCCL's defaults";
  EXPECT_NEAR(seconds(14, 7), 2.147, 0.001) << "perftest's";
  EXPECT_NEAR(seconds(1, 0), 32.768e-6, 1e-9);
  EXPECT_NEAR(seconds(31, 7), 281474.98, 0.01);
  EXPECT_EQ(RetryBudget({.timeout = 0, .retries = 7}), absl::InfiniteDuration());
}

TEST(LeastTimeoutTest, IsConfiguredOrWhatTheCarriersNeed) {
  const RdmaRetries by_default;
  const RdmaRetries nccl{.timeout = 20, .retries = 7};
  const RdmaRetries brief{.timeout = 14, .retries = 2};
  struct Row {
    std::optional<absl::Duration> configured;
    CallCarriers carriers;
    absl::Duration least;
  };
  const Row rows[] = {
      {{}, {}, absl::Seconds(10)},
      {{}, {.gpu = true}, absl::Seconds(60)},
      {{}, {.rdma = by_default}, absl::Seconds(60)},
      {{}, {.rdma = brief}, absl::Seconds(60)},
      {{}, {.gpu = true, .rdma = brief}, absl::Seconds(60)},
      {{}, {.rdma = nccl}, RetryBudget(nccl)},
      {{}, {.gpu = true, .rdma = nccl}, RetryBudget(nccl)},
      {{}, {.rdma = RdmaRetries{.timeout = 0}}, absl::InfiniteDuration()},
      {absl::Seconds(2), {}, absl::Seconds(2)},
      {absl::Seconds(2), {.gpu = true, .rdma = nccl}, absl::Seconds(2)},
      {absl::Minutes(5), {.rdma = by_default}, absl::Minutes(5)},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(LeastTimeout(row.configured, row.carriers), row.least) << (&row - rows);
  }
  // A device that never gives up leaves the configured limit.
  EXPECT_EQ(CallTimeout({.most = absl::Minutes(10), .least = absl::InfiniteDuration()}, 1000,
                        absl::Seconds(1)),
            absl::Minutes(10));
}

TEST(CallTimeoutsTest, EachKindAndNameHasFirstCallsOfItsOwn) {
  CallTimeouts timeouts(kLimits);
  const CallHeader bucket = Named(CallKind::kAllReduce, "bucket 0");
  const CallHeader save = Named(CallKind::kAllGather, "checkpoint reports");
  const CallHeader other_kind = Named(CallKind::kBroadcast, "bucket 0");
  ObserveTimes(timeouts, bucket, absl::Milliseconds(5), kFirstCalls);
  EXPECT_EQ(timeouts.Of(bucket), absl::Seconds(10));
  EXPECT_EQ(timeouts.Of(save), absl::Minutes(10));
  EXPECT_EQ(timeouts.Of(other_kind), absl::Minutes(10));
}

TEST(CallTimeoutsTest, TheLongestCallOfTheGroupCountsForAll) {
  CallTimeouts timeouts(kLimits);
  const CallHeader bucket = Named(CallKind::kAllReduce, "bucket 0");
  ObserveTimes(timeouts, bucket, absl::Milliseconds(5), kFirstCalls);
  timeouts.Observe(Named(CallKind::kAllGather, "checkpoint reports"), absl::Seconds(30));
  EXPECT_EQ(timeouts.Of(bucket), absl::Seconds(150));
  timeouts.Observe(bucket, absl::Milliseconds(5));
  EXPECT_EQ(timeouts.Of(bucket), absl::Seconds(150)) << "a short call must not shorten it again";
}

TEST(CallTimeoutsTest, AProgramThatNamesEveryCallAnewKeepsTheConfiguredLimitInBoundedMemory) {
  CallTimeouts timeouts(kLimits);
  for (int i = 0; i < 10000; ++i) {
    const CallHeader header = Named(CallKind::kAllReduce, absl::StrCat("call ", i));
    EXPECT_EQ(timeouts.Of(header), absl::Minutes(10));
    timeouts.Observe(header, absl::Milliseconds(1));
  }
  const CallHeader late = Named(CallKind::kAllReduce, "call 9999");
  ObserveTimes(timeouts, late, absl::Milliseconds(1), 2 * kFirstCalls);
  EXPECT_EQ(timeouts.Of(late), absl::Minutes(10));
}

}  // namespace
}  // namespace dtrain::comm::call_timeout_test
