// A rank that is stopped in the middle of a collective, or never makes it: every other rank names
// that rank, and not the one that it happens to wait for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "comm/group.h"
#include "comm/transport/who_is_missing.h"
#include "tests/comm/group_rounds.h"
#include "tests/comm/rdma_for_tests.h"
#include "tests/testing/cluster.h"

namespace dtrain::comm::missing_rank_test {
namespace {

using ::dtrain::testing::Cluster;
using ::dtrain::testing::RankContext;
using ::dtrain::testing::RankResult;
using ::dtrain::testing::RunRanks;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

WaitReport WaitsFor(std::vector<int> awaited, uint64_t sequence = 5) {
  return {.answered = true, .in_call = true, .sequence = sequence, .awaited = std::move(awaited)};
}
WaitReport Outside(uint64_t sequence) { return {.answered = true, .sequence = sequence}; }

TEST(WhoIsMissingTest, TheEndOfAChainIsNamedAndNotItsMiddle) {
  // A ring stopped at rank 2, seen from rank 0.
  const Missing missing =
      WhoIsMissing(0, {WaitsFor({3}), WaitsFor({0, 2}), WaitReport(), WaitsFor({2})});
  EXPECT_THAT(missing.silent, ElementsAre(2));
  EXPECT_THAT(missing.elsewhere, IsEmpty());
}

TEST(WhoIsMissingTest, ASilentRankThatNobodyWaitsForIsNotNamed) {
  EXPECT_THAT(WhoIsMissing(0, {WaitsFor({1}), WaitReport(), WaitReport()}).silent, ElementsAre(1));
  EXPECT_TRUE(WhoIsMissing(0, {WaitsFor({1}), WaitsFor({0}), WaitReport()}).none());
}

TEST(WhoIsMissingTest, ARankOutsideIsMissingOnlyIfItHasNotMadeTheCall) {
  EXPECT_THAT(WhoIsMissing(0, {WaitsFor({1}), Outside(4)}).elsewhere, ElementsAre(1));
  // Rank 1 has finished the call, and its data are still on the way.
  EXPECT_TRUE(WhoIsMissing(0, {WaitsFor({1}), Outside(5)}).none());
  // Sends and receives have no number, so an awaited rank is awaited now.
  EXPECT_THAT(WhoIsMissing(0, {WaitsFor({1}, UINT64_MAX), Outside(5)}).elsewhere, ElementsAre(1));
}

TEST(WhoIsMissingTest, RanksThatWaitForEachOtherAreMerelySlow) {
  EXPECT_TRUE(WhoIsMissing(1, {WaitsFor({1}), WaitsFor({2}), WaitsFor({0})}).none());
  EXPECT_TRUE(WhoIsMissing(0, {WaitsFor({1}), WaitsFor({})}).none()) << "it computes";
}

TEST(WhoIsMissingTest, WhatAPeerSaysOfRanksThatAreNotThereIsIgnored) {
  EXPECT_TRUE(WhoIsMissing(0, {WaitsFor({1, 7}), WaitsFor({-1, 2, 9})}).none());
}

enum class Over { kDirect, kRing, kHalving, kDoubling, kNodes, kUneven, kRdma };

GroupOptions OptionsOver(Over over, const RankContext& context) {
  GroupOptions options = context.group_options();
  options.timeout = absl::Seconds(2);
  options.allow_shared_memory = over == Over::kNodes || over == Over::kUneven;
  const Algorithm algorithms[] = {
      Algorithm::kDirect,    Algorithm::kRing,      Algorithm::kHalving, Algorithm::kDoubling,
      Algorithm::kAutomatic, Algorithm::kAutomatic, Algorithm::kRing};
  options.algorithm = algorithms[static_cast<int>(over)];
  options.network = Network::kTcp;
  if (over == Over::kNodes) {
    options.node_id = context.rank < 2 ? "a" : "b";
  } else if (over == Over::kUneven) {
    options.node_id = context.rank < 3 ? "a" : "b";  // Ranks 1 and 2 send nothing to another node.
  } else if (over == Over::kRdma) {
    UseRdma(options);
  }
  return options;
}

std::string NameOf(Over over) {
  const char* const names[] = {"Direct", "Ring", "Halving", "Doubling", "Nodes", "Uneven", "Rdma"};
  return names[static_cast<int>(over)];
}

class MissingRankTest : public ::testing::TestWithParam<Over> {};
INSTANTIATE_TEST_SUITE_P(Transports, MissingRankTest,
                         ::testing::Values(Over::kDirect, Over::kRing, Over::kHalving,
                                           Over::kDoubling, Over::kNodes, Over::kUneven,
                                           Over::kRdma),
                         [](const auto& tested) { return NameOf(tested.param); });

void ExpectNamed(const absl::Status& status, int missing, const std::string& missing_pid) {
  const std::string text(status.message());
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(text, HasSubstr(absl::StrCat("waiting for rank ", missing, " (")));
  EXPECT_THAT(text, HasSubstr(missing_pid));
  for (int rank = 0; rank < 4; ++rank) {
    if (rank != missing) {
      EXPECT_THAT(text, Not(HasSubstr(absl::StrCat("waiting for rank ", rank, " ("))));
    }
  }
  EXPECT_THAT(text, HasSubstr("not finished after 2s"));
}

// If ranks have different parts, two of them are stopped in turn; otherwise any one.
std::vector<int> RanksToStop(Over over) {
  switch (over) {
    case Over::kNodes:
    case Over::kUneven:
      return {3, 1};
    case Over::kRing:
    case Over::kDoubling:
      return {1};
    default:
      return {3};
  }
}

TEST_P(MissingRankTest, ARankStoppedAmongReductionsIsNamedByAll) {
  for (const int stopped : RanksToStop(GetParam())) {
    auto cluster = Cluster::Start({.size = 4}, [](RankContext& context) {
      return ReduceUntilAnError(context, OptionsOver(GetParam(), context), 1 << 18);
    });
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    ASSERT_TRUE(AwaitRounds(**cluster, 4).ok());
    const std::string pid = absl::StrCat("pid ", (*cluster)->pid(stopped));
    (*cluster)->Stop(stopped);
    const absl::Time start = absl::Now();
    for (int rank = 0; rank < 4; ++rank) {
      if (rank != stopped) {
        ASSERT_TRUE((*cluster)->Await(absl::StrCat("ended", rank)).ok());
      }
    }
    EXPECT_LT(absl::Now() - start, absl::Seconds(15)) << "2 s, the grace, and a busy machine";
    (*cluster)->Kill(stopped);  // Otherwise Join would wait for it.
    const std::vector<RankResult> results = (*cluster)->Join();
    for (int rank = 0; rank < 4; ++rank) {
      if (rank != stopped) {
        ExpectNamed(results[static_cast<size_t>(rank)].status, stopped, pid);
      }
    }
  }
}

// Rank 2 goes on computing after a barrier; with `with_message` it has queued a message for which
// it does not wait yet.
void ExpectBusyRankNamed(Over over, bool with_message) {
  const auto results = RunRanks({.size = 4}, [=](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto group, CreateHostGroup(context.store, OptionsOver(over, context)));
    DT_RETURN_IF_ERROR(group->Barrier(Deadline::Infinite()));
    if (context.rank == 2) {
      float value = 1;
      Work sent;
      if (with_message) {
        DT_ASSIGN_OR_RETURN(sent, group->Send({&value, sizeof(value)}, 0));
      }
      return context.store->Get("over", Deadline::After(absl::Seconds(30))).status();
    }
    std::vector<float> values(1 << 18, 1.0F);
    DT_ASSIGN_OR_RETURN(const Work work, group->AllReduce({values.data(), values.size() * 4},
                                                          ReduceOp::kSum, {.name = "bucket 7"}));
    const absl::Status status = work.Wait();
    DT_RETURN_IF_ERROR(context.store->Set("over", "", Deadline::Infinite()));
    return status;
  });
  for (const int rank : {0, 1, 3}) {
    const absl::Status& status = results[static_cast<size_t>(rank)].status;
    ExpectNamed(status, 2, "pid ");
    EXPECT_THAT(std::string(status.message()), HasSubstr("last seen at collective 1 (barrier"));
  }
  EXPECT_TRUE(results[2].status.ok()) << results[2].status;
}

TEST_P(MissingRankTest, ARankThatIsBusyElsewhereIsNamedWithItsLastCall) {
  ExpectBusyRankNamed(GetParam(), /*with_message=*/false);
}

TEST_P(MissingRankTest, ARankWithAMessageThatNobodyWaitsForAnswersToo) {
  ExpectBusyRankNamed(GetParam(), /*with_message=*/true);
}

TEST_P(MissingRankTest, SlowRanksBreakNothing) {
  auto cluster = Cluster::Start({.size = 4}, [](RankContext& context) -> absl::Status {
    GroupOptions options = OptionsOver(GetParam(), context);
    options.timeout = absl::Seconds(30);
    DT_ASSIGN_OR_RETURN(auto group, CreateHostGroup(context.store, options));
    DT_RETURN_IF_ERROR(context.Announce(absl::StrCat("rank", context.rank)));
    std::vector<float> values(100000, 1.0F);
    for (int round = 0; round < 10; ++round) {
      DT_ASSIGN_OR_RETURN(const Work work,
                          group->AllReduce({values.data(), values.size() * 4}, ReduceOp::kAverage));
      DT_RETURN_IF_ERROR(work.Wait());
    }
    DT_RETURN_IF_ERROR(group->Barrier(Deadline::Infinite()));
    return values[99999] == 1.0F ? absl::OkStatus() : absl::InternalError("wrong sum");
  });
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  ASSERT_TRUE(AwaitRounds(**cluster, 4).ok());
  (*cluster)->Slow(3, 4);
  for (const RankResult& result : (*cluster)->Join()) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

}  // namespace
}  // namespace dtrain::comm::missing_rank_test
