// Groups over shared memory with as many ranks as a large host has cores; here they share a few
// cores.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "comm/group.h"
#include "tests/comm/group_oracle.h"
#include "tests/testing/cluster.h"

namespace dtrain::comm::many_ranks_test {
namespace {

using ::dtrain::testing::RankContext;
using ::dtrain::testing::RankResult;
using ::dtrain::testing::RunRanks;

// Fewer elements for 64 ranks, because each rank's data for comparison grow with the number of
// ranks.
std::vector<size_t> Counts(int ranks) {
  return {3, 5000, ranks > 16 ? size_t{20011} : size_t{50003}};
}

class ManyRanksTest : public ::testing::TestWithParam<int> {
 protected:
  static void RunAll(const testing::RankBody& body) {
    for (const RankResult& result :
         RunRanks({.size = GetParam(), .time_bound = absl::Seconds(120)}, body)) {
      EXPECT_TRUE(result.status.ok()) << result.status;
    }
  }
  static absl::StatusOr<std::unique_ptr<Group>> Create(const RankContext& context) {
    GroupOptions options = context.group_options();
    options.timeout = absl::Seconds(100);
    DT_ASSIGN_OR_RETURN(auto group, CreateHostGroup(context.store, options));
    return group->transport() == "shm" ? absl::StatusOr<std::unique_ptr<Group>>(std::move(group))
                                       : absl::InternalError(group->transport());
  }
};
INSTANTIATE_TEST_SUITE_P(OneHost, ManyRanksTest, ::testing::Values(8, 16, 64),
                         [](const auto& tested) { return absl::StrCat(tested.param, "Ranks"); });

TEST_P(ManyRanksTest, GetTheOraclesBits) {
  RunAll([](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto group, Create(context));
    for (const size_t count : Counts(context.size)) {
      std::string values = oracle::Input(DType::kFloat32, count, context.rank, 11);
      DT_ASSIGN_OR_RETURN(const Work work,
                          group->AllReduce({values.data(), values.size()}, ReduceOp::kSum));
      DT_RETURN_IF_ERROR(work.Wait());
      DT_RETURN_IF_ERROR(oracle::Equal(
          values, oracle::Reduced(DType::kFloat32, count, context.size, 11, ReduceOp::kSum),
          DType::kFloat32, "all_reduce"));
    }
    return group->Barrier(Deadline::Infinite());
  });
}

// Reduces `count` elements of `data`, which peers map, then reduce-scatters and gathers parts of
// them.
absl::Status InRegisteredMemory(Group& group, char* data, size_t count) {
  const auto size = static_cast<size_t>(group.size());
  const auto rank = static_cast<size_t>(group.rank());
  std::string input = oracle::Input(DType::kFloat32, count, group.rank(), 12);
  std::memcpy(data, input.data(), input.size());
  double squares = -1;
  DT_ASSIGN_OR_RETURN(Work work, group.AllReduce({data, input.size()}, ReduceOp::kAverage,
                                                 {.name = "bucket", .sum_of_squares = &squares}));
  DT_RETURN_IF_ERROR(work.Wait());
  std::string want = oracle::Reduced(DType::kFloat32, count, group.size(), 12, ReduceOp::kAverage);
  DT_RETURN_IF_ERROR(
      oracle::Equal(std::string(data, input.size()), want, DType::kFloat32, "all_reduce"));
  const double norm = oracle::SquareSum(want, DType::kFloat32);
  if (std::abs(squares - norm) > 1e-12 * norm) {
    return absl::InternalError(absl::StrFormat("norm %.17g, want %.17g", squares, norm));
  }
  const size_t part = count / size;
  const size_t bytes = part * 4;
  input = oracle::Input(DType::kFloat32, part * size, group.rank(), 13);
  want = oracle::Reduced(DType::kFloat32, part * size, group.size(), 13, ReduceOp::kSum);
  std::memcpy(data, input.data(), input.size());
  char* const own = data + rank * bytes;
  DT_ASSIGN_OR_RETURN(work,
                      group.ReduceScatter({data, input.size()}, {own, bytes}, ReduceOp::kSum));
  DT_RETURN_IF_ERROR(work.Wait());
  DT_RETURN_IF_ERROR(oracle::Equal(std::string(own, bytes), want.substr(rank * bytes, bytes),
                                   DType::kFloat32, "reduce_scatter"));
  DT_ASSIGN_OR_RETURN(work, group.AllGather({own, bytes}, {data, input.size()}));
  DT_RETURN_IF_ERROR(work.Wait());
  return oracle::Equal(std::string(data, input.size()), want, DType::kFloat32, "all_gather");
}

TEST_P(ManyRanksTest, RegisteredMemoryIsReducedScatteredAndGathered) {
  RunAll([](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto group, Create(context));
    DT_ASSIGN_OR_RETURN(const auto buffer, SymmetricBuffer::Create(256 << 10, "test"));
    DT_ASSIGN_OR_RETURN(auto registration, group->Register(buffer));
    for (const size_t count : Counts(context.size)) {
      DT_RETURN_IF_ERROR(InRegisteredMemory(*group, static_cast<char*>(buffer->data()), count));
    }
    return group->Barrier(Deadline::Infinite());
  });
}

}  // namespace
}  // namespace dtrain::comm::many_ranks_test
