// A rank that waits for a late peer leaves its core to others: it spins for microseconds and then
// sleeps, over every transport.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status.h"
#include "comm/group.h"
#include "comm/transport/wait_context.h"
#include "tests/comm/rdma_for_tests.h"
#include "tests/testing/cluster.h"

namespace dtrain::comm::waiting_test {
namespace {

using dtrain::testing::RankContext;

constexpr absl::Duration kLate = absl::Seconds(1);
// A wait that spins takes the whole second. A lower limit would measure the machine's other load.
constexpr double kCpuSecondsMax = 0.3;

// A record after `futile` consecutive spins without success.
SpinRecord AfterFutile(int futile) {
  SpinRecord record;
  for (int i = 0; i < futile; ++i) {
    EXPECT_TRUE(record.Due()) << i;
    record.Note(/*seen=*/false);
  }
  return record;
}

TEST(SpinRecordTest, FutileSpinsThatAreNotInARowChangeNothing) {
  SpinRecord record = AfterFutile(3);
  record.Note(/*seen=*/true);
  for (int i = 0; i < 3; ++i) {
    record.Note(/*seen=*/false);
  }
  EXPECT_TRUE(record.Due());
}

TEST(SpinRecordTest, WhereSpinsSeeNothingMostWaitsAreSparedOne) {
  SpinRecord record = AfterFutile(4);
  int spun = 0;
  for (int wait = 0; wait < 170; ++wait) {
    if (record.Due()) {
      ++spun;
      record.Note(/*seen=*/false);
    }
  }
  EXPECT_EQ(spun, 10);
}

TEST(SpinRecordTest, OneThatSeesSomethingBringsThemBack) {
  SpinRecord record = AfterFutile(4);
  while (!record.Due()) {
  }
  record.Note(/*seen=*/true);
  for (int wait = 0; wait < 100; ++wait) {
    ASSERT_TRUE(record.Due());
    record.Note(/*seen=*/true);
  }
}

enum class Over { kShm, kTcp, kTls, kRdma };

// CPU time of all threads of this process.
double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Rank 1 comes a second late to two reductions; the CPU time that rank 0 spends waiting is
// measured.
absl::Status WaitForTheLate(RankContext& context, Over over) {
  GroupOptions options = context.group_options();
  options.allow_shared_memory = over == Over::kShm;
  options.tcp_tls = over == Over::kTls;
  if (over == Over::kRdma) {
    UseRdma(options);
  }
  DT_ASSIGN_OR_RETURN(auto group, CreateHostGroup(context.store, options));
  std::vector<float> values(size_t{1} << 16, 1.0F);
  for (const bool caller_waits : {true, false}) {
    DT_RETURN_IF_ERROR(group->Barrier(Deadline::Infinite()));
    if (context.rank == 1) {
      absl::SleepFor(kLate);
    }
    const double cpu = CpuSeconds();
    const int64_t start = Clock::Real().MonotonicNanos();
    DT_ASSIGN_OR_RETURN(const Work work,
                        group->AllReduce({values.data(), values.size() * 4}, ReduceOp::kSum,
                                         {.name = "late", .caller_waits = caller_waits}));
    DT_RETURN_IF_ERROR(work.Wait());
    const double spent = CpuSeconds() - cpu;
    const absl::Duration waited = absl::Nanoseconds(Clock::Real().MonotonicNanos() - start);
    if (context.rank == 0 && (waited < kLate / 2 || spent > kCpuSecondsMax)) {
      return absl::InternalError(
          absl::StrFormat("waited %s and used %.3f s of CPU time, caller_waits %d",
                          absl::FormatDuration(waited), spent, caller_waits));
    }
  }
  return group->Barrier(Deadline::Infinite());
}

class WaitingTest : public ::testing::TestWithParam<Over> {};

TEST_P(WaitingTest, ASecondOfWaitingTakesLittleCpu) {
  const Over over = GetParam();
  for (const auto& result : dtrain::testing::RunRanks(
           {.size = 2}, [over](RankContext& context) { return WaitForTheLate(context, over); })) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

std::string NameOf(const ::testing::TestParamInfo<Over>& test) {
  const char* const names[] = {"Shm", "Tcp", "Tls", "Rdma"};
  return names[static_cast<int>(test.param)];
}

INSTANTIATE_TEST_SUITE_P(Over, WaitingTest,
                         ::testing::Values(Over::kShm, Over::kTcp, Over::kTls, Over::kRdma),
                         NameOf);

}  // namespace
}  // namespace dtrain::comm::waiting_test
