// Groups split into groups, on one node and over several nodes, which are only names here.
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_format.h"
#include "base/json.h"
#include "base/status.h"
#include "comm/group.h"
#include "tests/testing/cluster.h"

namespace dtrain::comm::split_group_test {
namespace {

using ::dtrain::testing::RankContext;
using ::dtrain::testing::RankResult;
using ::dtrain::testing::RunRanks;

// Reduces the sum of the world's ranks over `group`.
absl::StatusOr<double> SumOver(Group& group, int world_rank) {
  double value = world_rank;
  DT_ASSIGN_OR_RETURN(const Work work,
                      group.AllReduce({&value, 8, DType::kFloat64}, ReduceOp::kSum));
  DT_RETURN_IF_ERROR(work.Wait());
  return value;
}

// The ranks of the world that the group's flight record names, in the group's order.
absl::StatusOr<std::string> RecordedRanks(Group& group) {
  DT_ASSIGN_OR_RETURN(const Json record, ParseJson(group.FlightRecord(), "record"));
  const Json& groups = record["pg_config"];
  return groups.size() == 1 ? groups.begin().value()["ranks"].get<std::string>() : groups.dump();
}

TEST(SplitHostGroupTest, RanksOfOneColorMeetInTheOrderOfTheirKeys) {
  for (const char* const layout : {"aaaa", "aabb", "aaab", "abbb"}) {
    const auto results = RunRanks({.size = 4}, [&](RankContext& context) -> absl::Status {
      GroupOptions options = context.group_options();
      options.node_id = std::string(1, layout[context.rank]);
      DT_ASSIGN_OR_RETURN(auto world, CreateHostGroup(context.store, options));
      for (int round = 0; round < 2; ++round) {  // A second split uses another name in the store.
        const int color = context.rank % 2;
        DT_ASSIGN_OR_RETURN(auto half, SplitHostGroup(*world, context.store, color, -context.rank));
        if (half->size() != 2 || half->rank() != (context.rank < 2 ? 1 : 0)) {
          return absl::InternalError(absl::StrFormat("rank %d of %d", half->rank(), half->size()));
        }
        DT_ASSIGN_OR_RETURN(const double sum, SumOver(*half, context.rank));
        if (sum != (color == 0 ? 2 : 4)) {
          return absl::InternalError(absl::StrFormat("sum %g", sum));
        }
        // Both halves are split in the same way and must not meet each other.
        DT_ASSIGN_OR_RETURN(auto alone, SplitHostGroup(*half, context.store, half->rank(), 0));
        DT_ASSIGN_OR_RETURN(const double own, SumOver(*alone, context.rank));
        if (alone->size() != 1 || own != context.rank) {
          return absl::InternalError("not alone");
        }
        DT_ASSIGN_OR_RETURN(const std::string of_half, RecordedRanks(*half));
        DT_ASSIGN_OR_RETURN(const std::string of_alone, RecordedRanks(*alone));
        if (of_half != (color == 0 ? "[2, 0]" : "[3, 1]") ||
            of_alone != absl::StrFormat("[%d]", context.rank)) {
          return absl::InternalError(absl::StrFormat("recorded: %s, %s", of_half, of_alone));
        }
        DT_RETURN_IF_ERROR(half->Barrier(Deadline::Infinite()));
      }
      DT_ASSIGN_OR_RETURN(auto some,
                          SplitHostGroup(*world, context.store, context.rank == 0 ? -1 : 5, 0));
      if ((some == nullptr) != (context.rank == 0)) {
        return absl::InternalError("a negative color has no group");
      }
      if (some != nullptr) {
        DT_ASSIGN_OR_RETURN(const double sum, SumOver(*some, context.rank));
        if (sum != 6) {
          return absl::InternalError(absl::StrFormat("sum %g", sum));
        }
        DT_RETURN_IF_ERROR(some->Barrier(Deadline::Infinite()));
      }
      return world->Barrier(Deadline::Infinite());
    });
    for (const RankResult& result : results) {
      EXPECT_TRUE(result.status.ok()) << result.status;
    }
  }
}

}  // namespace
}  // namespace dtrain::comm::split_group_test
