// The barrier of a node's ranks, flat and as a tree, between threads that each have a segment of
// their own.
#include "comm/transport/shm_segment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"

namespace dtrain::comm::shm_segment_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr auto kNever = [] { return absl::OkStatus(); };
constexpr auto kYes = [] { return true; };
constexpr int kTree = 0;  // Value of flat_ranks_max that always gives a tree.
constexpr int kFlat = 64;

WaitContext Within(absl::Duration time) { return {Deadline::After(time), kNever, kYes}; }
WaitContext Soon() { return Within(absl::Seconds(60)); }

using Body = std::function<absl::Status(ShmSegment& segment)>;

// Runs `body` as each of `size` members; gives what they returned.
std::vector<absl::Status> RunMembers(int size, int flat_ranks_max, const Body& body) {
  std::vector<UnixListener> listeners;
  std::vector<UnixMesh::Member> members;
  for (int rank = 0; rank < size; ++rank) {
    auto listener = UnixListener::Create();
    EXPECT_TRUE(listener.ok()) << listener.status();
    members.push_back({rank, listener->name, listener->nonce});
    listeners.push_back(*std::move(listener));
  }
  std::vector<absl::Status> results(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto i = static_cast<size_t>(rank);
      results[i] = [&]() -> absl::Status {
        DT_ASSIGN_OR_RETURN(UnixMesh mesh, UnixMesh::Connect(std::move(listeners[i]), members, rank,
                                                             Deadline::After(absl::Seconds(60))));
        DT_ASSIGN_OR_RETURN(auto segment, ShmSegment::Create(mesh, "test", Soon(), flat_ranks_max));
        return body(*segment);
      }();
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return results;
}

TEST(ShmSegmentTest, EverySyncShowsWhatAllWroteBeforeIt) {
  for (const int flat_ranks_max : {kTree, kFlat, kFlatRanksMax}) {
    for (const int size : {2, 3, 9, 10, 26}) {
      for (const absl::Status& status :
           RunMembers(size, flat_ranks_max, [](ShmSegment& segment) -> absl::Status {
             for (uint64_t round = 1; round <= 300; ++round) {
               segment.partial(segment.self(), round) =
                   static_cast<double>(round * 100) + segment.self();
               DT_RETURN_IF_ERROR(segment.Sync(Soon()));
               for (int index = 0; index < segment.size(); ++index) {
                 if (segment.partial(index, round) != static_cast<double>(round * 100) + index) {
                   return absl::InternalError(absl::StrCat("of ", index, " in round ", round));
                 }
               }
             }
             return absl::OkStatus();
           })) {
        EXPECT_TRUE(status.ok()) << status << " with " << size << " ranks";
      }
    }
  }
}

uint64_t CallsOf(const ShmSegment& segment) {
  return segment.futex_calls().waits + segment.futex_calls().wakes;
}

TEST(ShmSegmentTest, RanksThatSpinMakeNoSystemCall) {
  for (const int flat_ranks_max : {kTree, kFlat}) {
    for (const int size : {2, 3}) {
      for (const absl::Status& status :
           RunMembers(size, flat_ranks_max, [](ShmSegment& segment) -> absl::Status {
             WaitContext context = Soon();
             context.spin = absl::Seconds(60);  // A test machine may take a core away for long.
             DT_RETURN_IF_ERROR(segment.Sync(context));  // The sync in Create may have slept.
             DT_RETURN_IF_ERROR(segment.Sync(context));
             const uint64_t before = CallsOf(segment);
             for (int round = 0; round < 200; ++round) {
               DT_RETURN_IF_ERROR(segment.Sync(context));
             }
             const uint64_t calls = CallsOf(segment) - before;
             return calls == 0 ? absl::OkStatus() : absl::InternalError(absl::StrCat(calls));
           })) {
        EXPECT_TRUE(status.ok()) << status;
      }
    }
  }
}

// Rank 1 comes late repeatedly, until rank 0 has slept and been woken.
absl::Status SleepAndWake(ShmSegment& segment) {
  const ShmSegment::FutexCalls before = segment.futex_calls();
  const ShmSegment::FutexCalls& now = segment.futex_calls();
  const absl::Time start = absl::Now();
  for (uint64_t round = 1; round <= 200; ++round) {
    const bool seen = segment.self() == 1 ? now.wakes > before.wakes : now.waits > before.waits;
    segment.partial(segment.self(), round) = seen ? 1 : 0;
    if (segment.self() == 1) {
      Clock::Real().Sleep(absl::Milliseconds(10));
    }
    DT_RETURN_IF_ERROR(segment.Sync(Soon()));
    if (segment.partial(0, round) + segment.partial(1, round) == 2) {
      // It waits in slices, to check for aborts and dead peers, and makes no more system calls than
      // that.
      const auto slices = static_cast<uint64_t>((absl::Now() - start) / kWaitSlice);
      const uint64_t waits = now.waits - before.waits;
      return waits <= 2 * (slices + round) ? absl::OkStatus()
                                           : absl::InternalError(absl::StrCat(waits, " waits"));
    }
  }
  return absl::InternalError(
      absl::StrCat(now.waits, " waits, ", now.wakes, " wakes of ", segment.self()));
}

TEST(ShmSegmentTest, WhoWaitsForALateRankSleepsAndIsWoken) {
  for (const int flat_ranks_max : {kTree, kFlat}) {
    for (const absl::Status& status : RunMembers(2, flat_ranks_max, SleepAndWake)) {
      EXPECT_TRUE(status.ok()) << status;
    }
  }
}

// With 12 ranks the root has ranks 1 to 8 as children, and rank 1 has 9 to 11.
TEST(ShmSegmentTest, ARankThatLeavesIsNamedFromEveryPlaceOfATree) {
  for (const int leaver : {0, 1, 5, 10}) {
    const auto results = RunMembers(12, kTree, [leaver](ShmSegment& segment) -> absl::Status {
      for (int round = 0;; ++round) {
        if (segment.self() == leaver && round == 20) {
          return absl::OkStatus();
        }
        DT_RETURN_IF_ERROR(segment.Sync(Soon()));
      }
    });
    for (int rank = 0; rank < 12; ++rank) {
      if (rank != leaver) {
        const absl::Status& status = results[static_cast<size_t>(rank)];
        EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
      }
    }
    // Ranks that ended because of it may be reported as leaving too, but its neighbours saw it
    // first.
    EXPECT_TRUE(std::any_of(results.begin(), results.end(), [leaver](const absl::Status& status) {
      return std::string(status.message()).find(absl::StrCat("rank ", leaver, " (")) !=
             std::string::npos;
    }));
  }
}

TEST(ShmSegmentTest, ALateRankIsNamedAloneFromEveryPlaceOfATree) {
  for (const int late : {0, 1, 10}) {
    const auto results = RunMembers(12, kTree, [late](ShmSegment& segment) -> absl::Status {
      const Deadline all_ended = Deadline::After(absl::Seconds(2));
      absl::Status status;
      if (segment.self() != late) {
        status = segment.Sync(Within(absl::Seconds(1)));
      }
      // No rank leaves before all have given their results.
      Clock::Real().Sleep(all_ended.Remaining());
      return status;
    });
    for (int rank = 0; rank < 12; ++rank) {
      const std::string text(results[static_cast<size_t>(rank)].message());
      if (rank != late) {
        EXPECT_EQ(results[static_cast<size_t>(rank)].code(), absl::StatusCode::kDeadlineExceeded);
        EXPECT_THAT(text, HasSubstr(absl::StrCat("waiting for rank ", late, " (")));
        EXPECT_THAT(text, Not(HasSubstr(";"))) << "one rank";
      }
    }
  }
}

}  // namespace
}  // namespace dtrain::comm::shm_segment_test
