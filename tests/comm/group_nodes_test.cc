// Groups over several nodes, which are only names here: ranks of one node share memory, ranks of
// two talk over TCP.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "comm/call.h"
#include "comm/group.h"
#include "tests/comm/group_oracle.h"
#include "tests/comm/group_rounds.h"
#include "tests/testing/cluster.h"

namespace dtrain::comm::group_nodes_test {
namespace {

using ::dtrain::testing::Cluster;
using ::dtrain::testing::RankContext;
using ::dtrain::testing::RankKind;
using ::dtrain::testing::RankResult;
using ::dtrain::testing::RunRanks;
using ::testing::HasSubstr;

struct Nodes {
  std::string node_of_rank;  // One letter for each rank: its node.
  RankKind kind = RankKind::kProcess;
  bool nodes_first = true;  // False: everything goes over TCP.
};

GroupOptions OptionsOn(const Nodes& nodes, const RankContext& context) {
  GroupOptions options = context.group_options();
  options.node_id = nodes.node_of_rank.substr(static_cast<size_t>(context.rank), 1);
  return options;
}

class GroupNodesTest : public ::testing::TestWithParam<Nodes> {
 protected:
  static void RunAll(const testing::RankBody& body) {
    const int size = static_cast<int>(GetParam().node_of_rank.size());
    for (const RankResult& result : RunRanks({.size = size, .kind = GetParam().kind}, body)) {
      EXPECT_TRUE(result.status.ok()) << result.status;
    }
  }
  static absl::StatusOr<std::unique_ptr<Group>> Create(const RankContext& context,
                                                       bool deterministic = false) {
    GroupOptions options = OptionsOn(GetParam(), context);
    options.deterministic = deterministic;
    options.epoch = deterministic ? 1 : 0;
    return CreateHostGroup(context.store, options);
  }
};
INSTANTIATE_TEST_SUITE_P(Layouts, GroupNodesTest,
                         ::testing::Values(Nodes{"aabb"}, Nodes{"aabbcc"}, Nodes{"abab"},
                                           Nodes{"aaabbb"}, Nodes{"aabb", RankKind::kThread},
                                           Nodes{"aab"}, Nodes{"abb", RankKind::kThread},
                                           Nodes{"aabbb"}, Nodes{"aaabbc"},
                                           Nodes{"aba", RankKind::kProcess, false}),
                         [](const ::testing::TestParamInfo<Nodes>& tested) {
                           return tested.param.node_of_rank +
                                  (tested.param.kind == RankKind::kThread ? "Threads" : "");
                         });

absl::Status CheckNorm(double squares, const std::string& sums, DType dtype) {
  const double norm = oracle::SquareSum(sums, dtype);
  return std::abs(squares - norm) <= 1e-12 * norm
             ? absl::OkStatus()
             : absl::InternalError(absl::StrFormat("norm %.17g, want %.17g", squares, norm));
}

constexpr size_t kCounts[] = {0, 1, 2, 17, 4097, 262147};

TEST_P(GroupNodesTest, AllReduceSumsTheRanksOfANodeFirst) {
  RunAll([](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto group, Create(context));
    if (group->transport() != (GetParam().nodes_first ? "shm+tcp" : "tcp")) {
      return absl::InternalError(group->transport());
    }
    DT_ASSIGN_OR_RETURN(const auto buffer, SymmetricBuffer::Create(4 << 20, "test"));
    DT_ASSIGN_OR_RETURN(auto registration, group->Register(buffer));
    for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kInt64}) {
      const ReduceOp op = dtype == DType::kInt64 ? ReduceOp::kSum : ReduceOp::kAverage;
      for (const size_t count : kCounts) {
        std::string want;
        if (!GetParam().nodes_first) {
          want = oracle::Reduced(dtype, count, context.size, 5, op);
        } else if (dtype == DType::kFloat32) {
          want = oracle::SumByNodes<float>(GetParam().node_of_rank, dtype, count, 5, op);
        } else {
          want = oracle::SumByNodes<double>(GetParam().node_of_rank, dtype, count, 5, op);
        }
        const double norm = oracle::SquareSum(want, dtype);
        const std::string input = oracle::Input(dtype, count, context.rank, 5);
        for (const bool registered : {false, true}) {
          std::string own = input;
          char* data = own.data();
          if (registered) {
            data = static_cast<char*>(buffer->data()) + 4096;
            std::memcpy(data, own.data(), own.size());
          }
          double squares = dtype == DType::kInt64 ? norm : -1;
          CollectiveOptions options{.name = "bucket"};
          options.sum_of_squares = dtype == DType::kInt64 ? nullptr : &squares;
          DT_ASSIGN_OR_RETURN(const Work work,
                              group->AllReduce({data, own.size(), dtype}, op, options));
          DT_RETURN_IF_ERROR(work.Wait());
          DT_RETURN_IF_ERROR(
              oracle::Equal(std::string(data, own.size()), want, dtype, "all_reduce"));
          if (std::abs(squares - norm) > 1e-12 * norm) {
            return absl::InternalError(absl::StrFormat("norm %.17g, want %.17g", squares, norm));
          }
        }
      }
    }
    return group->Barrier(Deadline::Infinite());
  });
}

TEST_P(GroupNodesTest, RankOrderIsKeptWhereItIsPromised) {
  RunAll([](RankContext& context) -> absl::Status {
    for (const bool deterministic : {false, true}) {
      DT_ASSIGN_OR_RETURN(auto group, Create(context, deterministic));
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
        if (!deterministic && (dtype == DType::kFloat32 || GetParam().nodes_first)) {
          continue;
        }
        for (const size_t count : kCounts) {
          std::string values = oracle::Input(dtype, count, context.rank, 6);
          DT_ASSIGN_OR_RETURN(
              const Work work,
              group->AllReduce({values.data(), values.size(), dtype}, ReduceOp::kSum));
          DT_RETURN_IF_ERROR(work.Wait());
          DT_RETURN_IF_ERROR(
              oracle::Equal(values, oracle::Reduced(dtype, count, context.size, 6, ReduceOp::kSum),
                            dtype, "all_reduce"));
        }
      }
      DT_RETURN_IF_ERROR(group->Barrier(Deadline::Infinite()));
    }
    return absl::OkStatus();
  });
}

// The number of ranks on each node.
std::vector<int> SizesOf(const std::string& nodes) {
  std::vector<int> sizes;
  for (const char node : absl::string_view("abc")) {
    const auto ranks = static_cast<int>(std::count(nodes.begin(), nodes.end(), node));
    if (ranks > 0) {
      sizes.push_back(ranks);
    }
  }
  return sizes;
}

TEST_P(GroupNodesTest, SixteenBitsOnTheWireRoundWhatLeavesANode) {
  RunAll([](RankContext& context) -> absl::Status {
    const std::string& nodes = GetParam().node_of_rank;
    // The oracle needs each node's ranks to be consecutive, and so do nodes of different sizes.
    const bool by_nodes = GetParam().nodes_first && nodes != "abab";
    for (const bool deterministic : {false, true}) {
      if (!deterministic && GetParam().nodes_first && !by_nodes) {
        continue;
      }
      DT_ASSIGN_OR_RETURN(auto group, Create(context, deterministic));
      const std::vector<int> sizes =
          by_nodes && !deterministic ? SizesOf(nodes) : std::vector<int>();
      for (const Wire wire : {Wire::kBFloat16, Wire::kFloat16}) {
        for (const size_t count : kCounts) {
          const std::string want = oracle::ReducedOver(wire, count, context.size, 8, sizes);
          std::string values = oracle::Input(DType::kFloat32, count, context.rank, 8);
          double squares = -1;
          DT_ASSIGN_OR_RETURN(const Work work,
                              group->AllReduce({values.data(), values.size()}, ReduceOp::kSum,
                                               {.wire = wire, .sum_of_squares = &squares}));
          DT_RETURN_IF_ERROR(work.Wait());
          DT_RETURN_IF_ERROR(oracle::Equal(values, want, DType::kFloat32, WireName(wire)));
          DT_RETURN_IF_ERROR(CheckNorm(squares, want, DType::kFloat32));
        }
      }
      DT_RETURN_IF_ERROR(group->Barrier(Deadline::Infinite()));
    }
    return absl::OkStatus();
  });
}

// A node's sum is rounded when it leaves the node, and the sum of the nodes once more.
TEST_P(GroupNodesTest, SixteenBitTypesAreSummedByNodesToo) {
  if (!GetParam().nodes_first) {
    return;  // RankOrderIsKeptWhereItIsPromised tests these.
  }
  RunAll([](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto group, Create(context));
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      for (const size_t count : kCounts) {
        const std::string want = oracle::SumByNodes<float>(GetParam().node_of_rank, dtype, count,
                                                           12, ReduceOp::kSum, /*round=*/true);
        std::string values = oracle::Input(dtype, count, context.rank, 12);
        DT_ASSIGN_OR_RETURN(const Work work, group->AllReduce({values.data(), values.size(), dtype},
                                                              ReduceOp::kSum));
        DT_RETURN_IF_ERROR(work.Wait());
        DT_RETURN_IF_ERROR(oracle::Equal(values, want, dtype, "all_reduce"));
      }
      // Values whose average fits into fp16, but whose sum does not.
      std::vector<Float16> large(64, ToFloat16(60000));
      DT_ASSIGN_OR_RETURN(const Work work, group->AllReduce({large.data(), 128, DType::kFloat16},
                                                            ReduceOp::kAverage));
      DT_RETURN_IF_ERROR(work.Wait());
      if (ToFloat(large[63]) != ToFloat(ToFloat16(60000))) {
        return absl::InternalError("an fp16 average overflowed");
      }
    }
    return group->Barrier(Deadline::Infinite());
  });
}

constexpr size_t kOddCounts[] = {0, 1, 17, 63, 64, 65, 129, 4097};  // Slices begin at 64s.

// 16 bits both on the wire and as the buffer's type.
TEST_P(GroupNodesTest, ReduceScattersOfSixteenBitsRoundWhatLeavesANode) {
  if (!GetParam().nodes_first) {
    return;
  }
  RunAll([](RankContext& context) -> absl::Status {
    const std::string& nodes = GetParam().node_of_rank;
    DT_ASSIGN_OR_RETURN(auto group, Create(context));
    const auto rank = static_cast<size_t>(context.rank);
    for (const Wire wire : {Wire::kSameAsBuffer, Wire::kBFloat16, Wire::kFloat16}) {
      if (wire != Wire::kSameAsBuffer && nodes == "abab") {
        continue;  // The oracle needs each node's ranks to be consecutive.
      }
      const bool narrow = wire == Wire::kSameAsBuffer;
      const DType dtype = narrow ? DType::kBFloat16 : DType::kFloat32;
      for (const size_t count : kOddCounts) {
        const size_t total = count * nodes.size();
        const std::string want =
            narrow ? oracle::SumByNodes<float>(nodes, dtype, total, 14, ReduceOp::kSum,
                                               /*round=*/true)
                   : oracle::ReducedOver(wire, total, context.size, 14, SizesOf(nodes));
        std::string input = oracle::Input(dtype, total, context.rank, 14);
        const size_t part = count * DTypeBytes(dtype);
        std::string scattered(part, '-');
        double squares = -1;
        DT_ASSIGN_OR_RETURN(const Work work,
                            group->ReduceScatter({input.data(), input.size(), dtype},
                                                 {scattered.data(), part, dtype}, ReduceOp::kSum,
                                                 {.wire = wire, .sum_of_squares = &squares}));
        DT_RETURN_IF_ERROR(work.Wait());
        DT_RETURN_IF_ERROR(oracle::Equal(scattered, want.substr(rank * part, part), dtype,
                                         absl::StrCat("reduce_scatter ", WireName(wire))));
        DT_RETURN_IF_ERROR(CheckNorm(squares, want, dtype));
      }
    }
    return group->Barrier(Deadline::Infinite());
  });
}

TEST_P(GroupNodesTest, ReduceScatterAndAllGatherGoThroughTheNodesMemory) {
  RunAll([](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto group, Create(context));
    DT_ASSIGN_OR_RETURN(const auto buffer, SymmetricBuffer::Create(8 << 20, "test"));
    DT_ASSIGN_OR_RETURN(auto registration, group->Register(buffer));
    const auto size = static_cast<size_t>(context.size);
    const auto rank = static_cast<size_t>(context.rank);
    for (const size_t count : kCounts) {
      const size_t part = count * 4;
      const std::string input = oracle::Input(DType::kFloat32, count * size, context.rank, 7);
      const std::string all =
          GetParam().nodes_first
              ? oracle::SumByNodes<float>(GetParam().node_of_rank, DType::kFloat32, count * size, 7,
                                          ReduceOp::kAverage)
              : oracle::Reduced(DType::kFloat32, count * size, context.size, 7, ReduceOp::kAverage);
      for (const bool in_place : {false, true}) {  // In registered memory.
        std::string own = input;
        std::string apart(part, '-');
        char* const data = in_place ? static_cast<char*>(buffer->data()) : own.data();
        std::memcpy(data, input.data(), input.size());
        char* const scattered = in_place ? data + rank * part : apart.data();
        double squares = -1;
        DT_ASSIGN_OR_RETURN(Work work,
                            group->ReduceScatter({data, input.size()}, {scattered, part},
                                                 ReduceOp::kAverage, {.sum_of_squares = &squares}));
        DT_RETURN_IF_ERROR(work.Wait());
        DT_RETURN_IF_ERROR(oracle::Equal(std::string(scattered, part),
                                         all.substr(rank * part, part), DType::kFloat32,
                                         "reduce_scatter"));
        DT_RETURN_IF_ERROR(CheckNorm(squares, all, DType::kFloat32));
        DT_ASSIGN_OR_RETURN(work, group->AllGather({scattered, part}, {data, input.size()}));
        DT_RETURN_IF_ERROR(work.Wait());
        DT_RETURN_IF_ERROR(
            oracle::Equal(std::string(data, input.size()), all, DType::kFloat32, "all_gather"));
      }
    }
    return group->Barrier(Deadline::Infinite());
  });
}

TEST_P(GroupNodesTest, WhatGoesOverAllRanksIsAsEverywhere) {
  RunAll([](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto group, Create(context, /*deterministic=*/true));
    const auto size = static_cast<size_t>(context.size);
    const auto rank = static_cast<size_t>(context.rank);
    for (const size_t count : kCounts) {
      const std::string input = oracle::Input(DType::kFloat32, count * size, context.rank, 7);
      const size_t part = count * 4;
      std::string scattered(part, '-');
      DT_ASSIGN_OR_RETURN(Work work,
                          group->ReduceScatter({const_cast<char*>(input.data()), input.size()},
                                               {scattered.data(), part}, ReduceOp::kSum));
      DT_RETURN_IF_ERROR(work.Wait());
      const std::string all =
          oracle::Reduced(DType::kFloat32, count * size, context.size, 7, ReduceOp::kSum);
      DT_RETURN_IF_ERROR(oracle::Equal(scattered, all.substr(rank * part, part), DType::kFloat32,
                                       "reduce_scatter"));
      std::string gathered(part * size, '-');
      DT_ASSIGN_OR_RETURN(
          work, group->AllGather({scattered.data(), part}, {gathered.data(), gathered.size()}));
      DT_RETURN_IF_ERROR(work.Wait());
      DT_RETURN_IF_ERROR(oracle::Equal(gathered, all, DType::kFloat32, "all_gather"));
      const int root = context.size - 1;
      std::string sent = context.rank == root ? gathered : std::string(gathered.size(), '-');
      DT_ASSIGN_OR_RETURN(work, group->Broadcast({sent.data(), sent.size()}, root));
      DT_RETURN_IF_ERROR(work.Wait());
      DT_RETURN_IF_ERROR(oracle::Equal(sent, all, DType::kFloat32, "broadcast"));
      std::string swapped(gathered.size(), '-');
      std::memset(sent.data(), 'a' + context.rank, sent.size());
      DT_ASSIGN_OR_RETURN(
          work, group->AllToAll({sent.data(), sent.size()}, {swapped.data(), swapped.size()}));
      DT_RETURN_IF_ERROR(work.Wait());
      for (size_t i = 0; i < swapped.size(); ++i) {
        if (swapped[i] != static_cast<char>('a' + i / part)) {
          return absl::InternalError(absl::StrFormat("all_to_all: byte %d", i));
        }
      }
    }
    // Send to the next rank, which may be on this or another node.
    const int next = (context.rank + 1) % context.size;
    const int previous = (context.rank + context.size - 1) % context.size;
    int32_t out = context.rank;
    int32_t in = -1;
    DT_ASSIGN_OR_RETURN(const Work send, group->Send({&out, 4, DType::kInt32}, next));
    DT_ASSIGN_OR_RETURN(const Work receive, group->Receive({&in, 4, DType::kInt32}, previous));
    DT_RETURN_IF_ERROR(send.Wait());
    DT_RETURN_IF_ERROR(receive.Wait());
    DT_RETURN_IF_ERROR(group->Barrier(Deadline::Infinite()));
    return in == previous ? absl::OkStatus() : absl::InternalError("another rank's message");
  });
}

TEST_P(GroupNodesTest, ManyCallsOfAllKindsEndInOrder) {
  RunAll([](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto group, Create(context));
    std::vector<std::vector<float>> buffers(120);
    std::vector<Work> works;
    for (size_t i = 0; i < buffers.size(); ++i) {
      buffers[i].assign(1 + i * 97, static_cast<float>(i));
      const Buffer buffer{buffers[i].data(), buffers[i].size() * 4};
      auto work =
          i % 3 == 1 ? group->Broadcast(buffer, 0) : group->AllReduce(buffer, ReduceOp::kSum);
      DT_RETURN_IF_ERROR(work.status());
      works.push_back(*std::move(work));
    }
    for (size_t i = buffers.size(); i-- > 0;) {
      DT_RETURN_IF_ERROR(works[i].Wait());
      const float want =
          static_cast<float>(i) * (i % 3 == 1 ? 1.0F : static_cast<float>(context.size));
      if (buffers[i].front() != want || buffers[i].back() != want) {
        return absl::InternalError(absl::StrFormat("call %d", i));
      }
    }
    return group->Barrier(Deadline::Infinite());
  });
}

TEST(GroupNodesFaultsTest, ADifferentSizeOnAnotherNodeIsReportedByTheGroupsRanks) {
  struct Case {
    const char* nodes;
    int odd;
  };
  for (const auto& [layout, odd] :
       {Case{"aabb", 1}, Case{"aabb", 2}, Case{"aaab", 1}, Case{"aaab", 3}, Case{"abbb", 2}}) {
    const Nodes nodes{layout};
    const int other = odd;
    const auto results = RunRanks({.size = 4}, [&](RankContext& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(auto group, CreateHostGroup(context.store, OptionsOn(nodes, context)));
      std::vector<float> values(1001);
      const size_t bytes = context.rank == other ? 4004 : 4000;
      DT_ASSIGN_OR_RETURN(const Work work, group->AllReduce({values.data(), bytes}, ReduceOp::kSum,
                                                            {.name = "bucket 3"}));
      return work.Wait();
    });
    for (const RankResult& result : results) {
      EXPECT_EQ(result.status.code(), absl::StatusCode::kInvalidArgument) << result.status;
      EXPECT_THAT(
          std::string(result.status.message()),
          HasSubstr(absl::StrFormat("rank %d called all_reduce \"bucket 3\" sum fp32 4004", odd)));
    }
  }
}

// Loss of a rank on a node of two, of one alone on its node, and of one that sends nothing between
// nodes.
class GroupNodesLossTest : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Layouts, GroupNodesLossTest, ::testing::Values("aabb", "aaab", "abbb"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST_P(GroupNodesLossTest, AKilledRankIsNamedOnItsNodeAndOnTheOthers) {
  const Nodes nodes{GetParam()};
  auto cluster = Cluster::Start({.size = 4}, [&](RankContext& context) {
    return ReduceUntilAnError(context, OptionsOn(nodes, context), 1 << 18);
  });
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  ASSERT_TRUE(AwaitRounds(**cluster, 4).ok());
  const std::string killed = absl::StrCat("pid ", (*cluster)->pid(3));
  (*cluster)->Kill(3);
  const absl::Time start = absl::Now();
  const std::vector<RankResult> results = (*cluster)->Join();
  EXPECT_LT(absl::Now() - start, absl::Seconds(25)) << "the limit of a collective is 30 s";
  for (const int rank : {0, 1, 2}) {
    const absl::Status& status = results[static_cast<size_t>(rank)].status;
    EXPECT_TRUE(EndedByAKill(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(killed));
  }
}

TEST_P(GroupNodesLossTest, AStoppedRankEndsTheOthersAtTheTimeout) {
  const Nodes nodes{GetParam()};
  auto cluster = Cluster::Start({.size = 4}, [&](RankContext& context) -> absl::Status {
    GroupOptions options = OptionsOn(nodes, context);
    options.timeout = absl::Seconds(1);
    DT_ASSIGN_OR_RETURN(auto group, CreateHostGroup(context.store, options));
    DT_RETURN_IF_ERROR(group->Barrier(Deadline::Infinite()));
    if (context.rank == 3) {
      DT_RETURN_IF_ERROR(context.Announce("ready"));
      while (true) {
        pause();
      }
    }
    float value = 1;
    DT_ASSIGN_OR_RETURN(const Work work, group->AllReduce({&value, 4}, ReduceOp::kSum));
    const absl::Status status = work.Wait();
    DT_RETURN_IF_ERROR(context.Announce(absl::StrCat("reported", context.rank)));
    return status;
  });
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  ASSERT_TRUE((*cluster)->Await("ready").ok());
  (*cluster)->Stop(3);
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE((*cluster)->Await(absl::StrCat("reported", rank)).ok());
  }
  (*cluster)->Kill(3);
  const std::vector<RankResult> results = (*cluster)->Join();
  for (const int rank : {0, 1, 2}) {
    const absl::Status& status = results[static_cast<size_t>(rank)].status;
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("waiting for rank 3 ("));
  }
}

}  // namespace
}  // namespace dtrain::comm::group_nodes_test
