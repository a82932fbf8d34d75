// Ranks that work together wait for each other as long as each gets on, and not for one that hangs.
#include "runtime/checkpoint/group_exchange.h"

#include <gtest/gtest.h>

#include <functional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/status.h"
#include "base/threads/work_count.h"
#include "comm/group.h"
#include "tests/testing/cluster.h"

namespace dtrain::group_exchange_test {
namespace {

using testing::RankContext;

constexpr absl::Duration kTimeout = absl::Seconds(1);

absl::Status Expect(bool holds, absl::string_view what) {
  return holds ? absl::OkStatus() : absl::InternalError(absl::StrCat("not so: ", what));
}

void ExpectAllWell(int ranks, const std::function<absl::Status(GroupExchange&)>& body) {
  for (const auto& result :
       testing::RunRanks({.size = ranks}, [&](RankContext& context) -> absl::Status {
         DT_ASSIGN_OR_RETURN(const auto group,
                             comm::CreateHostGroup(context.store, context.group_options()));
         GroupExchange exchange(*group);
         return body(exchange);
       })) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

// Takes so long, in pieces; `counts`: each of them is one.
absl::Status Work(absl::Duration time, bool counts) {
  constexpr absl::Duration kPiece = absl::Milliseconds(20);
  for (absl::Duration done; done < time; done += kPiece) {
    absl::SleepFor(kPiece);
    if (counts) {
      WorkCount::Note();
    }
  }
  return absl::OkStatus();
}

TEST(TogetherTest, WorkThatGetsOnMayTakeLongerThanACall) {
  ExpectAllWell(3, [](GroupExchange& exchange) -> absl::Status {
    const absl::Time begin = absl::Now();
    DT_RETURN_IF_ERROR(exchange.Together(
        [&] { return exchange.rank() == 1 ? Work(3 * kTimeout, true) : absl::OkStatus(); },
        kTimeout));
    DT_RETURN_IF_ERROR(Expect(absl::Now() - begin > 2 * kTimeout, "all have waited for rank 1"));
    // The group is free again.
    return exchange.Broadcast("on", Deadline::After(absl::Seconds(20))).status();
  });
}

TEST(TogetherTest, APieceThatHasALimitOfItsOwnMayTakeThatLong) {
  ExpectAllWell(2, [](GroupExchange& exchange) {
    return exchange.Together(
        [&] {
          if (exchange.rank() == 0) {
            WorkCount::Allow(2 * kTimeout);
            return Work(2.5 * kTimeout, false);
          }
          return absl::OkStatus();
        },
        kTimeout);
  });
}

TEST(TogetherTest, WorkThatStandsStillIsAnErrorThatNamesItsRank) {
  ExpectAllWell(2, [](GroupExchange& exchange) -> absl::Status {
    const absl::Time begin = absl::Now();
    const absl::Status status = exchange.Together(
        [&] { return exchange.rank() == 1 ? Work(4 * kTimeout, false) : absl::OkStatus(); },
        kTimeout);
    if (exchange.rank() == 1) {
      return Expect(!status.ok(), "the others have given this rank up");
    }
    DT_RETURN_IF_ERROR(Expect(absl::IsDeadlineExceeded(status), status.ToString()));
    DT_RETURN_IF_ERROR(Expect(absl::StrContains(status.message(), "rank 1"), status.ToString()));
    return Expect(absl::Now() - begin < 3 * kTimeout, "it did not wait for the end of the work");
  });
}

TEST(TogetherTest, AnErrorIsOfTheRankThatMeetsIt) {
  ExpectAllWell(2, [](GroupExchange& exchange) -> absl::Status {
    const absl::Status status = exchange.Together(
        [&] {
          return exchange.rank() == 1 ? absl::DataLossError("a block is damaged")
                                      : Work(absl::Milliseconds(100), true);
        },
        kTimeout);
    return exchange.rank() == 1 ? Expect(absl::IsDataLoss(status), status.ToString()) : status;
  });
}

}  // namespace
}  // namespace dtrain::group_exchange_test
