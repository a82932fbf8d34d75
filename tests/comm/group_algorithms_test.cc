// Halving and doubling between four processes over real TCP connections, several of them a pair and
// with TLS, against an oracle that is compared bit by bit.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "comm/group.h"
#include "tests/comm/group_oracle.h"
#include "tests/testing/cluster.h"

namespace dtrain::comm::group_algorithms_test {
namespace {

using ::dtrain::testing::RankContext;
using ::dtrain::testing::RankResult;
using ::dtrain::testing::RunRanks;

constexpr int kRanks = 4;
// The last two counts are split over several connections, even after being halved twice; a test
// with one connection leaves the largest out.
constexpr size_t kCounts[] = {0, 1, 3, 17, 4097, 262147, 1048583};

struct Case {
  const char* name;
  Algorithm algorithm;
  int connections;
  bool tls;
};

class GroupAlgorithmsTest : public ::testing::TestWithParam<Case> {
 protected:
  static absl::StatusOr<std::unique_ptr<Group>> Create(const RankContext& context) {
    GroupOptions options = context.group_options();
    options.allow_shared_memory = false;
    options.network = Network::kTcp;
    options.algorithm = GetParam().algorithm;
    options.tcp_connections = GetParam().connections;
    options.tcp_tls = GetParam().tls;
    return CreateHostGroup(context.store, options);
  }
  static absl::Span<const size_t> Counts() {
    return absl::MakeSpan(kCounts).first(std::size(kCounts) -
                                         (GetParam().connections == 1 ? 1 : 0));
  }
  static void RunAll(const testing::RankBody& body) {
    for (const RankResult& result : RunRanks({.size = kRanks}, body)) {
      EXPECT_TRUE(result.status.ok()) << result.status;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(
    OverTcp, GroupAlgorithmsTest,
    ::testing::Values(Case{"Halving", Algorithm::kHalving, 1, false},
                      Case{"HalvingThreeConnections", Algorithm::kHalving, 3, false},
                      Case{"HalvingTls", Algorithm::kHalving, 1, true},
                      Case{"HalvingThreeConnectionsTls", Algorithm::kHalving, 3, true},
                      Case{"Doubling", Algorithm::kDoubling, 1, false},
                      Case{"DoublingThreeConnections", Algorithm::kDoubling, 3, false},
                      Case{"DoublingTls", Algorithm::kDoubling, 1, true},
                      Case{"RingThreeConnectionsTls", Algorithm::kRing, 3, true},
                      Case{"DirectThreeConnectionsTls", Algorithm::kDirect, 3, true}),
    [](const auto& tested) { return std::string(tested.param.name); });

// 16-bit floats are summed in rank order whatever algorithm is wanted; for integers the order does
// not matter.
std::string Want(DType dtype, size_t count, ReduceOp op) {
  const Algorithm algorithm = GroupAlgorithmsTest::GetParam().algorithm;
  const bool pairs = algorithm == Algorithm::kHalving || algorithm == Algorithm::kDoubling;
  if (pairs && dtype == DType::kFloat32) {
    return oracle::ReducedInPairs<float>(dtype, count, kRanks, 1, op);
  }
  if (pairs && dtype == DType::kFloat64) {
    return oracle::ReducedInPairs<double>(dtype, count, kRanks, 1, op);
  }
  return oracle::Reduced(dtype, count, kRanks, 1, op);
}

TEST_P(GroupAlgorithmsTest, AllReduceEqualsTheOracle) {
  // The ring's order is tested in group_test.
  const bool ring = GetParam().algorithm == Algorithm::kRing;
  RunAll([ring](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto group, Create(context));
    for (const DType dtype :
         {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16, DType::kInt64}) {
      const bool floating = dtype != DType::kInt64;
      if (ring && DTypeBytes(dtype) > 2 && floating) {
        continue;
      }
      for (const size_t count : Counts()) {
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
          if (op == ReduceOp::kAverage && (!floating || count > 10000)) {
            continue;
          }
          std::string values = oracle::Input(dtype, count, context.rank, 1);
          DT_ASSIGN_OR_RETURN(const Work work,
                              group->AllReduce({values.data(), values.size(), dtype}, op));
          DT_RETURN_IF_ERROR(work.Wait());
          DT_RETURN_IF_ERROR(oracle::Equal(values, Want(dtype, count, op), dtype, "all_reduce"));
        }
      }
    }
    return group->Barrier(Deadline::Infinite());
  });
}

TEST_P(GroupAlgorithmsTest, NormsAreThoseOfTheResultAndTheSameOnEveryRank) {
  RunAll([](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto group, Create(context));
    for (const size_t count : Counts()) {
      std::string values = oracle::Input(DType::kFloat32, count, context.rank, 1);
      double squares = -1;
      DT_ASSIGN_OR_RETURN(const Work work,
                          group->AllReduce({values.data(), values.size()}, ReduceOp::kSum,
                                           {.sum_of_squares = &squares}));
      DT_RETURN_IF_ERROR(work.Wait());
      const double norm = oracle::SquareSum(values, DType::kFloat32);
      if (std::abs(squares - norm) > 1e-12 * norm) {
        return absl::InternalError(absl::StrFormat("norm %.17g, want %.17g", squares, norm));
      }
      std::vector<double> all(kRanks);
      DT_ASSIGN_OR_RETURN(const Work gather,
                          group->AllGather({&squares, 8, DType::kFloat64},
                                           {all.data(), all.size() * 8, DType::kFloat64}));
      DT_RETURN_IF_ERROR(gather.Wait());
      for (const double other : all) {
        if (std::memcmp(&other, &squares, sizeof(other)) != 0) {
          return absl::InternalError("the norm differs between ranks");
        }
      }
    }
    return group->Barrier(Deadline::Infinite());
  });
}

TEST_P(GroupAlgorithmsTest, AllGatherMovesEveryByte) {
  RunAll([](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto group, Create(context));
    for (const size_t bytes : {size_t{0}, size_t{1}, size_t{1000}, size_t{700001}}) {
      const std::string own(bytes, static_cast<char>('a' + context.rank));
      std::string all(bytes * kRanks, '-');
      DT_ASSIGN_OR_RETURN(const Work work,
                          group->AllGather({const_cast<char*>(own.data()), bytes, DType::kUInt8},
                                           {all.data(), all.size(), DType::kUInt8}));
      DT_RETURN_IF_ERROR(work.Wait());
      for (size_t i = 0; i < all.size(); ++i) {
        if (all[i] != static_cast<char>('a' + i / bytes)) {
          return absl::InternalError(absl::StrFormat("byte %d of %d", i, all.size()));
        }
      }
    }
    return group->Barrier(Deadline::Infinite());
  });
}

}  // namespace
}  // namespace dtrain::comm::group_algorithms_test
