// Faults that no waiting call reports: ranks that hang outside of collectives, collectives that
// nobody waits for, errors that nobody asks for, calls that are stuck.
#include "comm/watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "comm/call_queue.h"
#include "comm/group.h"
#include "comm/queue_alarm.h"
#include "tests/comm/rdma_for_tests.h"
#include "tests/testing/cluster.h"

namespace dtrain::comm::watchdog_test {
namespace {

using ::dtrain::testing::RankContext;
using ::dtrain::testing::RankResult;
using ::dtrain::testing::RunRanks;
using ::testing::HasSubstr;

constexpr absl::Duration kSoon = absl::Seconds(20);  // A busy test machine is slow.

TEST(QueueAlarmTest, TellsWhatIsLateFromWhatIsNot) {
  const int64_t second = 1'000'000'000;
  const absl::Duration most = absl::Seconds(10);
  const auto at = [&](const QueueSnapshot& queue, int64_t seconds) {
    return AlarmOf(queue, seconds * second, most);
  };
  EXPECT_EQ(at({}, 1000), QueueAlarm::kNone);
  const QueueSnapshot running{
      .running = true, .started_nanos = second, .timeout = absl::Seconds(5)};
  EXPECT_EQ(at(running, 8), QueueAlarm::kNone) << "it ends itself";
  EXPECT_EQ(at(running, 10), QueueAlarm::kStuck);
  const QueueSnapshot queued{.queued = true, .queued_nanos = second};
  EXPECT_EQ(at(queued, 11), QueueAlarm::kNone);
  EXPECT_EQ(at(queued, 12), QueueAlarm::kNotBegun);
  // A process that was stopped, and began to run again a second ago, is late with everything.
  QueueSnapshot awoken = running;
  awoken.awake_nanos = 99 * second;
  EXPECT_EQ(at(awoken, 100), QueueAlarm::kNone);
  EXPECT_EQ(at(awoken, 103), QueueAlarm::kStuck);
  awoken = queued;
  awoken.awake_nanos = 99 * second;
  EXPECT_EQ(at(awoken, 100), QueueAlarm::kNone);
  EXPECT_EQ(at(awoken, 103), QueueAlarm::kNotBegun);
  // A call that is queued behind a running one waits for it.
  QueueSnapshot behind = running;
  behind.timeout = absl::Seconds(100);
  behind.queued = true;
  EXPECT_EQ(at(behind, 50), QueueAlarm::kNone);
  QueueSnapshot broken{.broken = true, .broken_nanos = second, .running = true};
  EXPECT_EQ(at(broken, 2), QueueAlarm::kNone);
  EXPECT_EQ(at(broken, 3), QueueAlarm::kUnreported);
  broken.reported = true;
  EXPECT_EQ(at(broken, 1000), QueueAlarm::kNone);
}

TEST(WatchdogTest, InspectsWhileItIsWatchedAndNoLonger) {
  std::atomic<int> inspections{0};
  for (int round = 0; round < 3; ++round) {  // Its thread ends and begins again.
    auto first = StartWatch([&inspections](int64_t) { ++inspections; });
    auto second = StartWatch([](int64_t) {});
    const Deadline deadline = Deadline::After(kSoon);
    while (inspections.load() < 2 && !deadline.Expired()) {
      Clock::Real().Sleep(absl::Milliseconds(5));
    }
    EXPECT_GE(inspections.load(), 2);
    first.reset();
    inspections = 0;
  }
  Clock::Real().Sleep(2 * kWatchPeriod);
  EXPECT_EQ(inspections.load(), 0);
}

TEST(WatchdogTest, WhatArrivesIsSeenAtOnceAndNotByTheNextRegularInspection) {
  constexpr int kRounds = 40;
  const UniqueFd bell(eventfd(0, EFD_NONBLOCK));
  std::atomic<int> seen{0};
  std::atomic<int> abandoned{0};
  const auto watch = StartWatch(
      [&](int64_t) {
        eventfd_t count = 0;
        if (eventfd_read(bell.get(), &count) == 0) {
          ++seen;
          AbandonGroups("a host has fallen silent");
        }
      },
      [&](const std::string&) { ++abandoned; }, bell.get());
  const int64_t begin = Clock::Real().MonotonicNanos();
  for (int round = 1; round <= kRounds; ++round) {
    ASSERT_EQ(eventfd_write(bell.get(), 1), 0);
    const Deadline deadline = Deadline::After(kSoon);
    while (abandoned.load() < round && !deadline.Expired()) {
      std::this_thread::yield();
    }
    ASSERT_EQ(seen.load(), round);
    ASSERT_EQ(abandoned.load(), round);
  }
  // Half a period each is what the regular inspections alone would take.
  EXPECT_LT(absl::Nanoseconds(Clock::Real().MonotonicNanos() - begin), kRounds * kWatchPeriod / 4);
}

TEST(WatchdogTest, ADescriptorWhosePeerHasGoneTakesNoTime) {
  std::array<int, 2> ends{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends.data()), 0);
  const UniqueFd mine(ends[0]);
  UniqueFd peer(ends[1]);
  std::atomic<int> inspections{0};
  const auto watch = StartWatch([&inspections](int64_t) { ++inspections; }, nullptr, mine.get());
  ASSERT_EQ(send(peer.get(), "text", 4, 0), 4);  // Nobody reads it.
  peer.reset();
  Clock::Real().Sleep(2 * kWatchPeriod);
  EXPECT_LE(inspections.load(), 6) << "two regular ones, the text, the end, and the first look";
}

enum class Over { kShm, kTcp, kRdma };

class GroupWatchdogTest : public ::testing::TestWithParam<Over> {
 protected:
  static absl::StatusOr<std::unique_ptr<Group>> Create(const RankContext& context,
                                                       absl::Duration timeout) {
    GroupOptions options = context.group_options();
    options.timeout = timeout;
    options.allow_shared_memory = GetParam() == Over::kShm;
    if (GetParam() == Over::kRdma) {
      UseRdma(options);
    } else {
      options.network = Network::kTcp;
    }
    DT_ASSIGN_OR_RETURN(auto group, CreateHostGroup(context.store, options));
    DT_RETURN_IF_ERROR(group->Barrier(Deadline::Infinite()));
    group->SetStep(41);
    return group;
  }
  // The reason in the group's flight record why the group is broken, once there is one.
  static absl::StatusOr<std::string> AwaitBroken(const Group& group) {
    const Deadline deadline = Deadline::After(kSoon);
    while (!deadline.Expired()) {
      DT_ASSIGN_OR_RETURN(const Json record, ParseJson(group.FlightRecord(), "record"));
      const Json& of_group = record["dtrain"]["groups"][0];
      if (of_group.contains("broken")) {
        return of_group["broken"].get<std::string>();
      }
      Clock::Real().Sleep(absl::Milliseconds(20));
    }
    return absl::NotFoundError("the watchdog saw nothing");
  }
};
std::string NameOf(Over over) {
  const char* const names[] = {"Shm", "Tcp", "Rdma"};
  return names[static_cast<int>(over)];
}
INSTANTIATE_TEST_SUITE_P(Transports, GroupWatchdogTest,
                         ::testing::Values(Over::kShm, Over::kTcp, Over::kRdma),
                         [](const auto& tested) { return NameOf(tested.param); });

TEST_P(GroupWatchdogTest, ARankThatHangsOutsideOfCollectivesIsNamedAndTellsOfItself) {
  const auto results = RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto group, Create(context, absl::Seconds(1)));
    std::vector<float> values(1000, 1.0F);
    const Buffer buffer{values.data(), 4000};
    if (context.rank == 0) {
      DT_ASSIGN_OR_RETURN(const Work work,
                          group->AllReduce(buffer, ReduceOp::kSum, {.name = "bucket 7"}));
      const absl::Status status = work.Wait();
      DT_RETURN_IF_ERROR(context.store->Get("told", Deadline::After(kSoon)).status());
      return status;
    }
    const auto told = AwaitBroken(*group);  // This rank hangs: it makes no call.
    DT_RETURN_IF_ERROR(context.store->Set("told", "", Deadline::Infinite()));
    DT_RETURN_IF_ERROR(told.status());
    const absl::StatusOr<Work> late = group->AllReduce(buffer, ReduceOp::kSum);
    if (!late.ok() || late->Wait().code() != absl::StatusCode::kAborted) {
      return absl::InternalError("a call on a broken group was not aborted");
    }
    return absl::UnknownError(*told);
  });
  EXPECT_EQ(results[0].status.code(), absl::StatusCode::kDeadlineExceeded) << results[0].status;
  EXPECT_THAT(std::string(results[0].status.message()), HasSubstr("rank 1 ("));
  EXPECT_EQ(results[1].status.code(), absl::StatusCode::kUnknown) << results[1].status;
  for (const char* const part : {"rank 1 of group \"world\": in no collective (the last, barrier",
                                 "ended ", " ago)", "when the others gave up: reported by rank 0",
                                 "bucket 7", "in step 41", "not finished after 1s"}) {
    EXPECT_THAT(std::string(results[1].status.message()), HasSubstr(part));
  }
}

TEST_P(GroupWatchdogTest, ACollectiveEndsLongBeforeItsLimitWhenAnotherTellsOfALoss) {
  const auto results = RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto group, Create(context, absl::Hours(1)));
    if (context.rank == 1) {  // As on a host that has fallen silent: no connection ends.
      return context.store->Get("over", Deadline::After(kSoon)).status();
    }
    float value = 1;
    DT_ASSIGN_OR_RETURN(const Work work, group->AllReduce({&value, 4}, ReduceOp::kSum));
    AbandonGroups("node 1 has been silent for 900ms");
    const absl::Status status = work.Wait();
    DT_RETURN_IF_ERROR(context.store->Set("over", "", Deadline::Infinite()));
    return status;
  });
  EXPECT_EQ(results[0].status.code(), absl::StatusCode::kAborted) << results[0].status;
  EXPECT_THAT(std::string(results[0].status.message()),
              HasSubstr("node 1 has been silent for 900ms"));
  EXPECT_TRUE(results[1].status.ok()) << results[1].status;
}

// How long a collective with a silent peer takes to end once this rank is told of the loss.
absl::StatusOr<absl::Duration> TimeToGiveUp(Group& group) {
  const UniqueFd bell(eventfd(0, EFD_NONBLOCK));
  const auto told = StartWatch(
      [&bell](int64_t) {
        eventfd_t count = 0;
        if (eventfd_read(bell.get(), &count) == 0) {
          AbandonGroups("node 1 has been silent for 900ms");
        }
      },
      nullptr, bell.get());
  float value = 1;
  DT_ASSIGN_OR_RETURN(const Work work, group.AllReduce({&value, 4}, ReduceOp::kSum));
  const int64_t begin = Clock::Real().MonotonicNanos();
  eventfd_write(bell.get(), 1);
  const absl::Status status = work.Wait();
  return absl::IsAborted(status)
             ? absl::StatusOr<absl::Duration>(
                   absl::Nanoseconds(Clock::Real().MonotonicNanos() - begin))
             : absl::InternalError(absl::StrCat("not given up: ", status.message()));
}

// A peer that closed its connection is given a moment to say why; this rank has closed it itself.
TEST(WatchdogTest, ACollectiveOverTcpGivesUpWithoutAWaitForThePeersReason) {
  constexpr int kTries = 5;
  const auto results = RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
    absl::Duration shortest = absl::InfiniteDuration();
    for (int i = 0; i < kTries; ++i) {  // A busy machine may hold up one of them.
      GroupOptions options = context.group_options();
      options.allow_shared_memory = false;
      options.network = Network::kTcp;
      options.epoch += static_cast<uint64_t>(i);
      DT_ASSIGN_OR_RETURN(auto group, CreateHostGroup(context.store, options));
      const std::string made = absl::StrCat("made ", i);
      const std::string over = absl::StrCat("over ", i);
      if (context.rank == 1) {  // As on a host that has fallen silent: no connection ends.
        DT_RETURN_IF_ERROR(context.store->Set(made, "", Deadline::After(kSoon)));
        DT_RETURN_IF_ERROR(context.store->Get(over, Deadline::After(kSoon)).status());
        continue;
      }
      // Rank 1 would fail to make its group if rank 0 gave up meanwhile.
      DT_RETURN_IF_ERROR(context.store->Get(made, Deadline::After(kSoon)).status());
      DT_ASSIGN_OR_RETURN(const absl::Duration took, TimeToGiveUp(*group));
      shortest = std::min(shortest, took);
      DT_RETURN_IF_ERROR(context.store->Set(over, "", Deadline::Infinite()));
    }
    return context.rank == 1 || shortest < absl::Milliseconds(150)
               ? absl::OkStatus()
               : absl::InternalError(absl::StrCat("it took ", absl::FormatDuration(shortest)));
  });
  for (const RankResult& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

TEST_P(GroupWatchdogTest, ACollectiveThatNobodyWaitsForIsToldToThePeersThatWaitInIt) {
  const auto results = RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto group,
                        Create(context, context.rank == 0 ? absl::Seconds(1) : 2 * kSoon));
    float value = 1;
    DT_ASSIGN_OR_RETURN(const Work work,
                        group->AllReduce({&value, 4}, ReduceOp::kSum,
                                         {.name = "bucket 7", .caller_waits = context.rank == 0}));
    if (context.rank == 1) {
      return work.Wait();
    }
    DT_ASSIGN_OR_RETURN(const std::string told, AwaitBroken(*group));
    return absl::UnknownError(told);
  });
  EXPECT_THAT(std::string(results[0].status.message()), HasSubstr("nobody waits for it"));
  EXPECT_EQ(results[1].status.code(), absl::StatusCode::kDeadlineExceeded) << results[1].status;
  EXPECT_LT(results[1].duration, kSoon);
  for (const char* const part :
       {"reported by rank 0", "nobody waits for it", "bucket 7", "step 41"}) {
    EXPECT_THAT(std::string(results[1].status.message()), HasSubstr(part));
  }
}

TEST_P(GroupWatchdogTest, AnErrorThatNobodyAsksForIsRecorded) {
  const auto results = RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto group, Create(context, absl::Seconds(1)));
    if (context.rank == 1) {
      return context.store->Get("told", Deadline::After(kSoon)).status();
    }
    float value = 1;
    DT_RETURN_IF_ERROR(
        group->AllReduce({&value, 4}, ReduceOp::kSum, {.name = "bucket 7"}).status());
    const auto told = AwaitBroken(*group);
    DT_RETURN_IF_ERROR(context.store->Set("told", "", Deadline::Infinite()));
    DT_RETURN_IF_ERROR(told.status());
    return absl::UnknownError(*told);
  });
  EXPECT_EQ(results[0].status.code(), absl::StatusCode::kUnknown) << results[0].status;
  for (const char* const part : {"bucket 7", "not finished after 1s", "rank 1 ("}) {
    EXPECT_THAT(std::string(results[0].status.message()), HasSubstr(part));
  }
}

// A group that is unused for long causes no alarm, nor does its end.
TEST_P(GroupWatchdogTest, RanksThatComputeForLongAreLeftAlone) {
  const auto results = RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
    // The ranks of a busy machine come to the call apart, so the limit is not a short one.
    constexpr absl::Duration kLimit = absl::Seconds(5);
    DT_ASSIGN_OR_RETURN(auto group, Create(context, kLimit));
    Clock::Real().Sleep(kLimit + absl::Seconds(1));
    float value = 1;
    DT_ASSIGN_OR_RETURN(const Work work, group->AllReduce({&value, 4}, ReduceOp::kSum));
    DT_RETURN_IF_ERROR(work.Wait());
    DT_RETURN_IF_ERROR(group->Barrier(Deadline::Infinite()));
    if (context.rank == 0) {
      return absl::OkStatus();  // Its group ends before the other's.
    }
    Clock::Real().Sleep(absl::Seconds(1));
    return absl::StrContains(group->FlightRecord(), "\"broken\"")
               ? absl::InternalError(group->FlightRecord())
               : absl::OkStatus();
  });
  for (const RankResult& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

// A runner that ignores its deadline, like a thread that is stuck in a driver.
TEST(CallQueueWatchTest, ACallThatOutlivesItsLimitEndsTheGroupForThePeers) {
  std::atomic<bool> go{false};
  std::atomic<bool> gave_up{false};
  std::string told;
  CallQueueOptions options;
  options.recorder = FlightRecorder::Create({.name = "stuck", .rank = 3, .size = 4});
  options.timeouts = {.most = absl::Seconds(1), .least = absl::Seconds(1)};
  options.poll_peers = [] { return absl::OkStatus(); };
  options.give_up = [&](const absl::Status& reason) {
    told = std::string(reason.message());
    gave_up = true;
  };
  const auto queue = std::make_shared<CallQueue>(options, [&](auto, absl::Duration) {
    while (!go.load()) {
      Clock::Real().Sleep(absl::Milliseconds(10));
    }
    return absl::OkStatus();
  });
  Call call;
  call.header.kind = CallKind::kAllReduce;
  call.header.sequence = 12;
  SetName(call.header, "bucket 7");
  const Work work = queue->Push(call, /*caller_waits=*/false);
  const Deadline deadline = Deadline::After(kSoon);
  while (!gave_up.load() && !deadline.Expired()) {
    Clock::Real().Sleep(absl::Milliseconds(20));
  }
  ASSERT_TRUE(gave_up.load());
  go = true;
  for (const char* const part : {"rank 3 of group \"stuck\"", "bucket 7", "collective 12",
                                 "its limit of 1s is over", "stuck in it"}) {
    EXPECT_THAT(told, HasSubstr(part));
  }
  EXPECT_TRUE(queue->is_broken());
  EXPECT_THAT(options.recorder->broken(), HasSubstr("stuck in it"));
  queue->Stop(absl::AbortedError("the test is over"));
}

// The group's thread sleeps while a waiting thread runs its own call, and nobody waits for the one
// that is pushed meanwhile.
TEST(CallQueueWatchTest, ACallBehindOneThatItsCallerRunsIsBegunWithoutAnyWait) {
  std::promise<void> first_ran, second_runs, second_may_end, third_ran;
  CallQueueOptions options;
  options.recorder = FlightRecorder::Create({.name = "behind", .size = 2});
  options.timeouts = {.most = absl::Minutes(10), .least = absl::Minutes(10)};
  const auto queue = std::make_shared<CallQueue>(
      options, [&](absl::Span<const Call> calls, absl::Duration /*timeout*/) {
        if (calls.front().header.sequence == 1) {
          first_ran.set_value();
        } else if (calls.front().header.sequence == 2) {
          second_runs.set_value();
          second_may_end.get_future().wait();
        } else {
          third_ran.set_value();
        }
        return absl::OkStatus();
      });
  const auto push = [&](uint64_t sequence, bool caller_waits) {
    Call call;
    call.header.kind = CallKind::kAllReduce;
    call.header.sequence = sequence;
    return queue->Push(call, caller_waits);
  };
  const Work first = push(1, /*caller_waits=*/false);
  first_ran.get_future().wait();
  EXPECT_TRUE(first.Wait().ok()) << "and the group's thread is idle";
  const Work second = push(2, /*caller_waits=*/true);
  std::thread caller([&] { EXPECT_TRUE(second.Wait().ok()); });
  second_runs.get_future().wait();
  const Work third = push(3, /*caller_waits=*/false);
  second_may_end.set_value();
  third_ran.get_future().wait();
  caller.join();
  EXPECT_TRUE(third.Wait().ok());
  queue->Stop(absl::AbortedError("the test is over"));
}

}  // namespace
}  // namespace dtrain::comm::watchdog_test
