// Ranks that work together wait for each other as long as each gets on, and not for one that hangs.
#include "runtime/checkpoint/group_exchange.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/agent_channel.h"
#include "base/deadline.h"
#include "base/status.h"
#include "base/threads/work_count.h"
#include "comm/group.h"
#include "runtime/job/heartbeat.h"
#include "tests/testing/agent_end.h"
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

// Else the agent would end a job of one rank that starts from a large checkpoint.
class AloneTest : public ::testing::Test {
 protected:
  void SetUp() override {
    heartbeat_ = std::make_unique<Heartbeat>(channel_, 0);
    auto group = comm::CreateHostGroup(nullptr, {});
    ASSERT_TRUE(group.ok()) << group.status();
    group_ = *std::move(group);
  }

  // How often its agent has heard that the rank got on.
  uint64_t Marks() {
    heartbeat_->Mark("program", ++step_);
    const absl::StatusOr<AgentMessage> message = AgentMessage::Parse(agent_.Receive());
    EXPECT_TRUE(message.ok()) << message.status();
    return message.ok() ? message->marks - static_cast<uint64_t>(step_) : 0;
  }

  AgentEnd agent_;
  AgentChannel channel_ = agent_.Connect();
  std::unique_ptr<Heartbeat> heartbeat_;
  std::unique_ptr<comm::Group> group_;
  int64_t step_ = 0;
};

TEST_F(AloneTest, ItsWorkThatGetsOnIsProgressToItsAgent) {
  GroupExchange exchange(*group_, heartbeat_.get());
  ASSERT_TRUE(exchange.Together([] { return Work(kTimeout, true); }, kTimeout).ok());
  const uint64_t marks = Marks();
  EXPECT_GE(marks, 2U);
  ASSERT_TRUE(exchange.Gather("a step", Deadline::After(kTimeout)).ok());
  EXPECT_EQ(Marks(), marks + 1);
}

TEST_F(AloneTest, ItsWorkThatStandsStillIsNone) {
  GroupExchange exchange(*group_, heartbeat_.get());
  ASSERT_TRUE(exchange.Together([] { return Work(kTimeout, false); }, kTimeout).ok());
  EXPECT_EQ(Marks(), 0U);
}

}  // namespace
}  // namespace dtrain::group_exchange_test
