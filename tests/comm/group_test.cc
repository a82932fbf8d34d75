// Every operation on every transport, between processes and between threads, against a serial
// oracle that is compared bit by bit: ranks that agree with it agree with each other.
#include "comm/group.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/numeric/float16.h"
#include "base/status.h"
#include "comm/call.h"
#include "comm/collectives/partition.h"
#include "tests/comm/group_oracle.h"
#include "tests/comm/rdma_for_tests.h"
#include "tests/testing/cluster.h"

namespace dtrain::comm::group_test {
namespace {

using ::dtrain::testing::RankContext;
using ::dtrain::testing::RankKind;
using ::dtrain::testing::RankResult;
using ::dtrain::testing::RunRanks;

struct Case {
  int size;
  enum { kShm, kTcp, kTcpRing, kRdma, kTls } over;
  RankKind kind;
};

class GroupTest : public ::testing::TestWithParam<Case> {
 protected:
  static absl::StatusOr<std::unique_ptr<Group>> Create(const RankContext& context,
                                                       uint64_t epoch = 0) {
    GroupOptions options = context.group_options();
    options.allow_shared_memory = GetParam().over == Case::kShm;
    options.algorithm = GetParam().over == Case::kTcpRing ? Algorithm::kRing : Algorithm::kDirect;
    options.epoch = epoch;
    options.tcp_tls = GetParam().over == Case::kTls;
    if (GetParam().over == Case::kRdma) {
      UseRdma(options);
    }
    return CreateHostGroup(context.store, options);
  }
  static void RunAll(testing::RankBody body) {
    for (const RankResult& result :
         RunRanks({.size = GetParam().size, .kind = GetParam().kind}, std::move(body))) {
      EXPECT_TRUE(result.status.ok()) << result.status;
    }
  }
};

std::string NameOf(const Case& tested) {
  const char* const over[] = {"Shm", "Tcp", "TcpRing", "Rdma", "Tls"};
  return absl::StrFormat("%d%s%s", tested.size,
                         tested.kind == RankKind::kProcess ? "Processes" : "Threads",
                         over[tested.over]);
}

INSTANTIATE_TEST_SUITE_P(
    Transports, GroupTest,
    ::testing::Values(
        Case{1, Case::kShm, RankKind::kProcess}, Case{2, Case::kShm, RankKind::kProcess},
        Case{3, Case::kShm, RankKind::kProcess}, Case{4, Case::kShm, RankKind::kProcess},
        Case{3, Case::kTls, RankKind::kProcess}, Case{3, Case::kTls, RankKind::kThread},
        Case{2, Case::kTcp, RankKind::kProcess}, Case{3, Case::kTcp, RankKind::kProcess},
        Case{2, Case::kTcpRing, RankKind::kProcess}, Case{3, Case::kTcpRing, RankKind::kProcess},
        Case{4, Case::kTcpRing, RankKind::kProcess}, Case{2, Case::kShm, RankKind::kThread},
        Case{4, Case::kShm, RankKind::kThread}, Case{3, Case::kTcp, RankKind::kThread},
        Case{4, Case::kTcp, RankKind::kThread}, Case{3, Case::kTcpRing, RankKind::kThread},
        Case{2, Case::kRdma, RankKind::kProcess}, Case{3, Case::kRdma, RankKind::kProcess},
        Case{2, Case::kRdma, RankKind::kThread}),
    [](const ::testing::TestParamInfo<Case>& tested) { return NameOf(tested.param); });

// The order in which the transport under test sums an all-reduce, or a reduce-scatter in parts of
// `part` elements.
oracle::FirstRank OrderOf(int size, DType dtype, size_t count, size_t part = 0) {
  const bool ring = GroupTest::GetParam().over == Case::kTcpRing && DTypeBytes(dtype) > 2;
  return [=](size_t i) -> size_t {
    if (!ring) {
      return 0;
    }
    int owner = 0;
    while (part != 0 ? i >= (static_cast<size_t>(owner) + 1) * part
                     : i >= SliceOf(count, size, owner).start + SliceOf(count, size, owner).count) {
      ++owner;
    }
    return static_cast<size_t>((owner + 1) % size);
  };
}

constexpr size_t kCounts[] = {0, 1, 17, 4097, 262147};

TEST_P(GroupTest, AllReduceEqualsTheOracleForEveryTypeAndSize) {
  RunAll([](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto group, Create(context));
    for (const DType dtype : oracle::kReducible) {
      for (const size_t count : kCounts) {
        for (const ReduceOp op : oracle::OpsFor(dtype)) {
          if (count > 100000 && op != ReduceOp::kSum) {
            continue;  // Skipped to keep the test short: the loops are the same for all.
          }
          std::string values = oracle::Input(dtype, count, context.rank, 1);
          DT_ASSIGN_OR_RETURN(const Work work,
                              group->AllReduce({values.data(), values.size(), dtype}, op));
          DT_RETURN_IF_ERROR(work.Wait());
          DT_RETURN_IF_ERROR(oracle::Equal(values,
                                           oracle::Reduced(dtype, count, context.size, 1, op,
                                                           OrderOf(context.size, dtype, count)),
                                           dtype, "all_reduce"));
        }
      }
    }
    return group->Barrier(Deadline::Infinite());
  });
}

TEST_P(GroupTest, RegisteredMemoryGivesTheSameBitsAndItsNorm) {
  RunAll([](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto group, Create(context));
    DT_ASSIGN_OR_RETURN(const auto buffer, SymmetricBuffer::Create(4 << 20, "test"));
    DT_ASSIGN_OR_RETURN(auto registration, group->Register(buffer));
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      for (const size_t count : kCounts) {
        const std::string input = oracle::Input(dtype, count, context.rank, 2);
        char* const place = static_cast<char*>(buffer->data()) + 4096;
        std::memcpy(place, input.data(), input.size());
        double squares = -1;
        DT_ASSIGN_OR_RETURN(const Work work,
                            group->AllReduce({place, input.size(), dtype}, ReduceOp::kAverage,
                                             {.name = "bucket", .sum_of_squares = &squares}));
        DT_RETURN_IF_ERROR(work.Wait());
        const std::string want = oracle::Reduced(dtype, count, context.size, 2, ReduceOp::kAverage,
                                                 OrderOf(context.size, dtype, count));
        DT_RETURN_IF_ERROR(
            oracle::Equal(std::string(place, input.size()), want, dtype, "registered"));
        const double norm = oracle::SquareSum(want, dtype);
        if (std::abs(squares - norm) > 1e-12 * norm) {
          return absl::InternalError(absl::StrFormat("norm %.17g, want %.17g", squares, norm));
        }
        // The same bits on every rank.
        std::vector<double> all(static_cast<size_t>(context.size));
        DT_ASSIGN_OR_RETURN(const Work gather,
                            group->AllGather({&squares, 8, DType::kFloat64},
                                             {all.data(), all.size() * 8, DType::kFloat64}));
        DT_RETURN_IF_ERROR(gather.Wait());
        for (const double other : all) {
          if (other != squares) {
            return absl::InternalError("the norm differs between ranks");
          }
        }
      }
    }
    return group->Barrier(Deadline::Infinite());
  });
}

TEST_P(GroupTest, ASumOfSquaresIsNotFiniteWhenOneElementOfOneRankIsNot) {
  RunAll([](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto group, Create(context));
    for (const size_t count : {size_t{5}, size_t{200003}}) {
      std::vector<float> values(count, 1.0F);
      if (context.rank == context.size - 1) {
        values[count - 1] = std::numeric_limits<float>::infinity();
      }
      double squares = 0;
      DT_ASSIGN_OR_RETURN(const Work work,
                          group->AllReduce({values.data(), count * 4}, ReduceOp::kSum,
                                           {.sum_of_squares = &squares}));
      DT_RETURN_IF_ERROR(work.Wait());
      if (std::isfinite(squares)) {
        return absl::InternalError("an infinite element was not noticed");
      }
    }
    return group->Barrier(Deadline::Infinite());
  });
}

TEST_P(GroupTest, SixteenBitsOnTheWireRoundInputsAndResultAlike) {
  RunAll([](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto group, Create(context));
    for (const Wire wire : {Wire::kBFloat16, Wire::kFloat16}) {
      for (const size_t count : kCounts) {
        std::string values = oracle::Input(DType::kFloat32, count, context.rank, 3);
        DT_ASSIGN_OR_RETURN(const Work work, group->AllReduce({values.data(), values.size()},
                                                              ReduceOp::kSum, {.wire = wire}));
        DT_RETURN_IF_ERROR(work.Wait());
        DT_RETURN_IF_ERROR(oracle::Equal(values, oracle::ReducedOver(wire, count, context.size, 3),
                                         DType::kFloat32, WireName(wire)));
      }
    }
    return group->Barrier(Deadline::Infinite());
  });
}

TEST_P(GroupTest, ReduceScatterGivesEachRankItsPart) {
  RunAll([](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto group, Create(context));
    const auto size = static_cast<size_t>(context.size);
    DT_ASSIGN_OR_RETURN(const auto buffer, SymmetricBuffer::Create(8 << 20, "test"));
    DT_ASSIGN_OR_RETURN(auto registration, group->Register(buffer));
    for (const bool registered : {false, true}) {
      for (const size_t count : kCounts) {
        std::string own = oracle::Input(DType::kFloat32, count * size, context.rank, 4);
        char* input = own.data();
        if (registered) {
          input = static_cast<char*>(buffer->data());
          std::memcpy(input, own.data(), own.size());
        }
        const size_t part = count * 4;
        char* const output = input + static_cast<size_t>(context.rank) * part;  // In place.
        double squares = 0;
        DT_ASSIGN_OR_RETURN(const Work work,
                            group->ReduceScatter({input, own.size()}, {output, part},
                                                 ReduceOp::kSum, {.sum_of_squares = &squares}));
        DT_RETURN_IF_ERROR(work.Wait());
        const std::string all =
            oracle::Reduced(DType::kFloat32, count * size, context.size, 4, ReduceOp::kSum,
                            OrderOf(context.size, DType::kFloat32, count * size, count));
        DT_RETURN_IF_ERROR(oracle::Equal(std::string(output, part),
                                         all.substr(static_cast<size_t>(context.rank) * part, part),
                                         DType::kFloat32, "reduce_scatter"));
        const double norm = oracle::SquareSum(all, DType::kFloat32);
        if (std::abs(squares - norm) > 1e-12 * norm) {
          return absl::InternalError(absl::StrFormat("norm %.17g, want %.17g", squares, norm));
        }
      }
    }
    return group->Barrier(Deadline::Infinite());
  });
}

TEST_P(GroupTest, AllGatherBroadcastAndAllToAllMoveEveryByte) {
  RunAll([](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto group, Create(context));
    DT_ASSIGN_OR_RETURN(const auto buffer, SymmetricBuffer::Create(16 << 20, "test"));
    DT_ASSIGN_OR_RETURN(auto registration, group->Register(buffer));
    const auto size = static_cast<size_t>(context.size);
    const auto rank = static_cast<size_t>(context.rank);
    for (const bool registered : {false, true}) {
      for (const size_t bytes : {size_t{0}, size_t{1}, size_t{17}, (size_t{1} << 20) + 3}) {
        std::string own(bytes * size, 'x');
        char* const output = registered ? static_cast<char*>(buffer->data()) : own.data();
        const auto byte = [](size_t from, size_t i) { return static_cast<char>(from * 31 + i); };
        for (size_t i = 0; i < bytes; ++i) {
          output[rank * bytes + i] = byte(rank, i);
        }
        DT_ASSIGN_OR_RETURN(Work work,
                            group->AllGather({output + rank * bytes, bytes, DType::kUInt8},
                                             {output, bytes * size, DType::kUInt8}));
        DT_RETURN_IF_ERROR(work.Wait());
        for (size_t i = 0; i < bytes * size; ++i) {
          if (output[i] != byte(i / bytes, i % bytes)) {
            return absl::InternalError(absl::StrFormat("all_gather: byte %d", i));
          }
        }
        for (size_t root = 0; root < size; ++root) {
          std::memset(output, rank == root ? 'r' : '-', bytes);
          DT_ASSIGN_OR_RETURN(
              work, group->Broadcast({output, bytes, DType::kUInt8}, static_cast<int>(root)));
          DT_RETURN_IF_ERROR(work.Wait());
          if (std::string(output, bytes) != std::string(bytes, 'r')) {
            return absl::InternalError("broadcast");
          }
        }
        std::string received(bytes * size, '-');
        for (size_t i = 0; i < bytes * size; ++i) {
          output[i] = byte(rank + 7 * (i / std::max<size_t>(bytes, 1)), i);
        }
        DT_ASSIGN_OR_RETURN(work, group->AllToAll({output, bytes * size, DType::kUInt8},
                                                  {received.data(), bytes * size, DType::kUInt8}));
        DT_RETURN_IF_ERROR(work.Wait());
        for (size_t i = 0; i < bytes * size; ++i) {
          if (received[i] != byte(i / bytes + 7 * rank, rank * bytes + i % bytes)) {
            return absl::InternalError(absl::StrFormat("all_to_all: byte %d", i));
          }
        }
      }
    }
    return group->Barrier(Deadline::Infinite());
  });
}

TEST_P(GroupTest, RanksThatAllSendFirstDoNotBlockEachOther) {
  RunAll([](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto group, Create(context));
    const int next = (context.rank + 1) % context.size;
    const int previous = (context.rank + context.size - 1) % context.size;
    if (context.size == 1) {
      return absl::OkStatus();
    }
    for (const size_t bytes : {size_t{0}, size_t{5}, size_t{3} << 20}) {
      std::string out(bytes, static_cast<char>('a' + context.rank));
      std::string in(bytes, '-');
      DT_ASSIGN_OR_RETURN(const Work send, group->Send({out.data(), bytes, DType::kUInt8}, next));
      DT_ASSIGN_OR_RETURN(const Work receive,
                          group->Receive({in.data(), bytes, DType::kUInt8}, previous));
      DT_RETURN_IF_ERROR(send.Wait());
      DT_RETURN_IF_ERROR(receive.Wait());
      if (in != std::string(bytes, static_cast<char>('a' + previous))) {
        return absl::InternalError("received other bytes than were sent");
      }
    }
    return group->Barrier(Deadline::Infinite());
  });
}

TEST_P(GroupTest, ManyCallsInFlightEndInOrder) {
  RunAll([](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto group, Create(context));
    std::vector<std::vector<float>> buffers(200);
    std::vector<Work> works;
    for (size_t i = 0; i < buffers.size(); ++i) {
      buffers[i].assign(1 + i * 97, static_cast<float>(i));
      DT_ASSIGN_OR_RETURN(
          const Work work,
          group->AllReduce({buffers[i].data(), buffers[i].size() * 4}, ReduceOp::kSum));
      works.push_back(work);
    }
    // Waits for the last one first, because then all before it are done.
    for (size_t i = buffers.size(); i-- > 0;) {
      DT_RETURN_IF_ERROR(works[i].Wait());
      if (buffers[i].back() != static_cast<float>(i) * static_cast<float>(context.size)) {
        return absl::InternalError(absl::StrFormat("call %d", i));
      }
    }
    return group->Barrier(Deadline::After(absl::Seconds(30)));
  });
}

TEST_P(GroupTest, ANewEpochWorksOverTheSameMemory) {
  RunAll([](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto buffer, SymmetricBuffer::Create(1 << 20, "kept"));
    auto* const values = static_cast<float*>(buffer->data());
    void* const address = buffer->data();
    for (uint64_t epoch = 0; epoch < 3; ++epoch) {
      DT_ASSIGN_OR_RETURN(auto group, Create(context, epoch));
      DT_ASSIGN_OR_RETURN(auto registration, group->Register(buffer));
      std::fill(values, values + 200000, 1.0F);
      DT_ASSIGN_OR_RETURN(const Work work, group->AllReduce({values, 800000}, ReduceOp::kSum));
      DT_RETURN_IF_ERROR(work.Wait());
      if (values[199999] != static_cast<float>(context.size) || buffer->data() != address) {
        return absl::InternalError(absl::StrFormat("epoch %d", epoch));
      }
      registration.reset();  // Ends before the group, which must still work without it.
      DT_ASSIGN_OR_RETURN(const Work again, group->AllReduce({values, 800000}, ReduceOp::kMax));
      DT_RETURN_IF_ERROR(again.Wait());
    }
    return absl::OkStatus();
  });
}

TEST_P(GroupTest, AWorkMayOutliveItsGroup) {
  RunAll([](RankContext& context) -> absl::Status {
    float value = 1;
    Work work;
    {
      DT_ASSIGN_OR_RETURN(auto group, Create(context));
      DT_ASSIGN_OR_RETURN(work, group->AllReduce({&value, 4}, ReduceOp::kSum));
      DT_RETURN_IF_ERROR(work.Wait());
      DT_RETURN_IF_ERROR(group->Barrier(Deadline::Infinite()));
    }
    return work.Done() && work.Wait().ok() ? absl::OkStatus() : absl::InternalError("lost");
  });
}

TEST(GroupArgumentsTest, AreRefusedByName) {
  auto group = CreateHostGroup(nullptr, {});
  ASSERT_TRUE(group.ok());
  int32_t integer = 0;
  EXPECT_EQ((*group)->AllReduce({&integer, 4, DType::kInt32}, ReduceOp::kAverage).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ((*group)->AllReduce({&integer, 3}, ReduceOp::kSum).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ((*group)->Broadcast({&integer, 4}, 1).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ((*group)->Send({&integer, 4}, 0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CreateHostGroup(nullptr, {.rank = 0, .size = 2}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(GroupArgumentsTest, ANetworkDeviceThatDoesNotExistIsNamedWithThoseThatDo) {
  const absl::Status status = CreateHostGroup(nullptr, {.host_interface = "nosuch0"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  for (const char* const part : {"comm.interface", "\"nosuch0\"", "lo"}) {
    EXPECT_NE(std::string(status.message()).find(part), std::string::npos) << status;
  }
  EXPECT_EQ(CreateHostGroup(nullptr, {.tcp_connections = 17}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(GroupArgumentsTest, TlsExcludesRdmaAndRanksMustWantItAlike) {
  const absl::Status both =
      CreateHostGroup(nullptr, {.network = Network::kRdma, .tcp_tls = true}).status();
  EXPECT_EQ(both.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(both.message()).find("comm.tcp.tls"), std::string::npos) << both;
  for (const RankResult& result : RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
         GroupOptions options = context.group_options();
         options.allow_shared_memory = false;
         options.tcp_tls = context.rank == 1;
         return CreateHostGroup(context.store, options).status();
       })) {
    EXPECT_EQ(result.status.code(), absl::StatusCode::kInvalidArgument) << result.status;
    EXPECT_NE(std::string(result.status.message()).find("with TLS"), std::string::npos);
  }
}

TEST(GroupArgumentsTest, AGroupOfOneIsAlone) {
  auto group = CreateHostGroup(nullptr, {});
  ASSERT_TRUE(group.ok());
  EXPECT_EQ((*group)->transport(), "alone");
  std::vector<float> values = {3, 4};
  double squares = 0;
  auto work =
      (*group)->AllReduce({values.data(), 8}, ReduceOp::kAverage, {.sum_of_squares = &squares});
  ASSERT_TRUE(work.ok());
  EXPECT_TRUE(work->Wait().ok());
  EXPECT_EQ(squares, 25);
  EXPECT_EQ(values, (std::vector<float>{3, 4}));
  (*group)->Abort("enough");
  auto after = (*group)->AllReduce({values.data(), 8}, ReduceOp::kSum);
  ASSERT_TRUE(after.ok());
  EXPECT_EQ(after->Wait().code(), absl::StatusCode::kAborted);
}

}  // namespace
}  // namespace dtrain::comm::group_test
