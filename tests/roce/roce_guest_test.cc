// Tests that need a real device; run by roce_test.py inside a guest with soft-RoCE.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "comm/group.h"
#include "tests/comm/rdma_for_tests.h"
#include "tests/testing/cluster.h"

namespace dtrain::comm::roce_guest_test {
namespace {

using ::dtrain::testing::RankContext;
using ::dtrain::testing::RankResult;
using ::dtrain::testing::RunRanks;
using ::testing::HasSubstr;

absl::Status CreateAndReduce(const RankContext& context, const GroupOptions& options,
                             const std::string& transport) {
  DT_ASSIGN_OR_RETURN(auto group, CreateHostGroup(context.store, options));
  std::vector<float> values(500001, 1.0F);
  DT_ASSIGN_OR_RETURN(const Work work,
                      group->AllReduce({values.data(), values.size() * 4}, ReduceOp::kSum));
  DT_RETURN_IF_ERROR(work.Wait());
  DT_RETURN_IF_ERROR(group->Barrier(Deadline::Infinite()));
  if (group->transport() != transport) {
    return absl::InternalError(absl::StrFormat("over %s", group->transport()));
  }
  return values.back() == static_cast<float>(context.size) ? absl::OkStatus()
                                                           : absl::InternalError("wrong sum");
}

GroupOptions Options(const RankContext& context) {
  GroupOptions options = context.group_options();
  options.node_id = absl::StrFormat("node%d", context.rank);
  options.network = Network::kRdma;
  options.rdma.timeout = kGuestTimeout;
  return options;
}

TEST(RoceGuestTest, AutomaticFindsTheDevice) {
  for (const RankResult& result : RunRanks({.size = 2}, [](RankContext& context) {
         GroupOptions options = Options(context);
         options.network = Network::kAutomatic;
         return CreateAndReduce(context, options, "rdma");
       })) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

TEST(RoceGuestTest, SeveralQueuePairsAndEveryPacketOptionWork) {
  for (const RankResult& result : RunRanks({.size = 3}, [](RankContext& context) {
         GroupOptions options = Options(context);
         options.rdma.queue_pairs = 3;
         options.rdma.slots = 4;
         options.rdma.slot_bytes = 16384;
         options.rdma.traffic_class = 106;
         options.rdma.service_level = 3;
         options.rdma.gid_index = 1;
         options.rdma.device = "rxe0";
         return CreateAndReduce(context, options, "rdma");
       })) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

void ExpectRefused(const std::function<void(GroupOptions&, int rank)>& change,
                   absl::StatusCode code, const std::vector<std::string>& parts) {
  for (const RankResult& result : RunRanks({.size = 2}, [&](RankContext& context) {
         GroupOptions options = Options(context);
         change(options, context.rank);
         return CreateAndReduce(context, options, "rdma");
       })) {
    EXPECT_EQ(result.status.code(), code) << result.status;
    for (const std::string& part : parts) {
      EXPECT_THAT(std::string(result.status.message()), HasSubstr(part));
    }
  }
}

TEST(RoceGuestTest, ADeviceThatDoesNotExistIsRefusedByName) {
  ExpectRefused([](GroupOptions& options, int) { options.rdma.device = "mlx5_0"; },
                absl::StatusCode::kNotFound,
                {"\"mlx5_0\" does not exist; there are: rxe0/1 (Ethernet, ACTIVE)"});
}

TEST(RoceGuestTest, AGidThatDoesNotExistIsRefusedWithThoseThatDo) {
  ExpectRefused([](GroupOptions& options, int) { options.rdma.gid_index = 77; },
                absl::StatusCode::kNotFound, {"gid_index 77", "10.0.0.1 (RoCE v2,"});
}

TEST(RoceGuestTest, TooLittleLockedMemoryIsToldToBothRanksWithTheRemedy) {
  ExpectRefused(
      [](GroupOptions&, int rank) {
        const rlimit limit{65536, 65536};
        // The limit does not hold for root.
        if (rank == 1 && (setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || setuid(65534) != 0)) {
          _exit(1);
        }
      },
      absl::StatusCode::kResourceExhausted,
      {"rank 1 (", "locked memory is 65536 bytes", "ulimit -l unlimited"});
}

}  // namespace
}  // namespace dtrain::comm::roce_guest_test
