// How ranks agree whether to use RDMA, and the errors of ranks that cannot.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/status.h"
#include "comm/group.h"
#include "comm/transport/rdma/connect_rdma.h"
#include "comm/transport/rdma/fake/fake_verbs.h"
#include "tests/comm/rdma/reducing_ranks.h"
#include "tests/testing/cluster.h"

namespace dtrain::comm::rdma_connect_test {
namespace {

using ::dtrain::comm::rdma_ranks::Options;
using ::dtrain::comm::rdma_ranks::ReduceOnes;
using ::dtrain::comm::rdma_ranks::Text;
using ::dtrain::testing::RankContext;
using ::dtrain::testing::RankResult;
using ::dtrain::testing::RunRanks;
using ::testing::HasSubstr;

// The ranks' results of Create, and the transport, when rank 1 has `faults`.
std::vector<RankResult> CreateWith(Network network, const FakeVerbsFaults& faults,
                                   const std::string& device = "") {
  return RunRanks({.size = 3}, [=](RankContext& context) -> absl::Status {
    FakeVerbs verbs(context.rank == 1 ? faults : FakeVerbsFaults());
    GroupOptions options = Options(context, verbs, network);
    options.rdma.device = context.rank == 1 ? device : "";
    DT_ASSIGN_OR_RETURN(auto group, CreateHostGroup(context.store, options));
    DT_RETURN_IF_ERROR(ReduceOnes(*group, 1000));
    DT_RETURN_IF_ERROR(group->Barrier(Deadline::Infinite()));
    return group->transport() == "tcp" ? absl::OkStatus() : absl::UnknownError(group->transport());
  });
}

struct Lack {
  const char* name;
  FakeVerbsFaults faults;
  const char* device;
  absl::StatusCode code;
  std::vector<std::string> parts;
};

std::vector<Lack> Lacks() {
  RdmaPort version_one = FakePort();
  version_one.gids[0].type = RdmaGid::Type::kRoceV1;
  RdmaPort down = FakePort();
  down.active = false;
  down.state = "DOWN";
  return {
      {"library", {.no_library = true}, "", absl::StatusCode::kNotFound, {"libibverbs1"}},
      {"gid",
       {.ports = {version_one}},
       "",
       absl::StatusCode::kNotFound,
       {"fake0/1: no RoCE v2 GID; there are: 1: 10.", "(RoCE v1, eth0)"}},
      {"port",
       {.ports = {down}},
       "",
       absl::StatusCode::kNotFound,
       {"no active RDMA port", "fake0/1 (Ethernet, DOWN)"}},
      {"device",
       {},
       "mlx5_7",
       absl::StatusCode::kNotFound,
       {"RDMA device \"mlx5_7\" does not exist; there are: fake0/1 (Ethernet, ACTIVE)"}},
      {"memlock",
       {.cannot_pin = true},
       "",
       absl::StatusCode::kResourceExhausted,
       {"cannot register 8388864 bytes", "locked memory is 65536 bytes", "ulimit -l unlimited"}},
      {"connection",
       {.cannot_connect = true},
       "",
       absl::StatusCode::kInvalidArgument,
       {"ibv_modify_qp to RTR", "rank 0 (node"}},
  };
}

TEST(RdmaConnectTest, WhatOneRankLacksIsToldToAllWhereRdmaIsRequired) {
  for (const Lack& lack : Lacks()) {
    for (const RankResult& result : CreateWith(Network::kRdma, lack.faults, lack.device)) {
      EXPECT_EQ(result.status.code(), lack.code) << lack.name << ": " << result.status;
      // The code and the line with which a program ends.
      const bool may_come = lack.code == absl::StatusCode::kResourceExhausted;
      EXPECT_EQ(ExitCodeFor(result.status), may_come ? kExitTemporary : kExitUsage) << lack.name;
      EXPECT_THAT(Text(result), ::testing::Not(HasSubstr("\n"))) << lack.name;
      EXPECT_THAT(Text(result), HasSubstr("connecting over RDMA: rank 1 (node")) << lack.name;
      for (const std::string& part : lack.parts) {
        EXPECT_THAT(Text(result), HasSubstr(part)) << lack.name;
      }
    }
  }
}

TEST(RdmaConnectTest, AutomaticGoesOnOverTcpOnAllRanks) {
  for (const Lack& lack : Lacks()) {
    for (const RankResult& result : CreateWith(Network::kAutomatic, lack.faults, lack.device)) {
      EXPECT_TRUE(result.status.ok()) << lack.name << ": " << result.status;
    }
  }
}

// A path that carries nothing, though both ports are active: another fabric, or a firewall.
TEST(RdmaConnectTest, APathThatCarriesNothingIsFoundWhileConnecting) {
  for (const Network network : {Network::kRdma, Network::kAutomatic}) {
    for (const RankResult& result : RunRanks({.size = 2}, [network](RankContext& context) {
           const auto run = [&]() -> absl::Status {
             FakeVerbs verbs(context.rank == 1 ? FakeVerbsFaults{.cut_at_write = 0}
                                               : FakeVerbsFaults());
             GroupOptions options = Options(context, verbs, network);
             options.connect_timeout = absl::Seconds(8);
             DT_ASSIGN_OR_RETURN(auto group, CreateHostGroup(context.store, options));
             DT_RETURN_IF_ERROR(ReduceOnes(*group, 1000));
             DT_RETURN_IF_ERROR(group->Barrier(Deadline::Infinite()));
             return absl::UnknownError(group->transport());
           };
           return run();
         })) {
      if (network == Network::kAutomatic) {
        EXPECT_EQ(result.status, absl::UnknownError("tcp"));
      } else {
        // Rank 0 waits for an answer until half of its time is over, or until rank 1 gives up.
        EXPECT_THAT(result.status.code(), ::testing::AnyOf(absl::StatusCode::kDeadlineExceeded,
                                                           absl::StatusCode::kUnavailable));
        EXPECT_THAT(Text(result), HasSubstr("connecting over RDMA: rank 0 (node"));
        EXPECT_THAT(Text(result), HasSubstr("rank 1 (node"));
      }
    }
  }
}

TEST(RdmaConnectTest, AutomaticTakesRdmaWhereAllRanksHaveIt) {
  for (const RankResult& result : CreateWith(Network::kAutomatic, {})) {
    EXPECT_EQ(result.status, absl::UnknownError("rdma"));
  }
  for (const RankResult& result : CreateWith(Network::kTcp, {})) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

TEST(RdmaConnectTest, RanksOfDifferentWishesAreRefused) {
  for (const RankResult& result : RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
         FakeVerbs verbs;
         return CreateHostGroup(
                    context.store,
                    Options(context, verbs, context.rank == 0 ? Network::kRdma : Network::kTcp))
             .status();
       })) {
    EXPECT_EQ(result.status.code(), absl::StatusCode::kInvalidArgument) << result.status;
    EXPECT_THAT(Text(result), HasSubstr("\"rdma, "));
    EXPECT_THAT(Text(result), HasSubstr("\"tcp, "));
  }
}

TEST(RdmaConnectTest, RanksWithOtherRingsAreRefused) {
  for (const RankResult& result : RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
         FakeVerbs verbs;
         GroupOptions options = Options(context, verbs);
         options.rdma.slots = 4 + context.rank;
         return CreateHostGroup(context.store, options).status();
       })) {
    EXPECT_EQ(result.status.code(), absl::StatusCode::kInvalidArgument) << result.status;
    EXPECT_THAT(Text(result), HasSubstr("5 slots of 262144 bytes"));
  }
}

TEST(RdmaOptionsTest, EachFieldHasARange) {
  EXPECT_TRUE(CheckRdmaOptions({}).ok());
  const auto refused = [](const std::function<void(RdmaOptions&)>& change, const char* text) {
    RdmaOptions options;
    change(options);
    const absl::Status status = CheckRdmaOptions(options);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  };
  refused([](RdmaOptions& o) { o.gid_index = -2; }, "gid_index is -2; allowed: -1 to 255");
  refused([](RdmaOptions& o) { o.queue_pairs = 9; }, "queue_pairs is 9; allowed: 1 to 8");
  refused([](RdmaOptions& o) { o.traffic_class = 256; }, "traffic_class is 256");
  refused([](RdmaOptions& o) { o.service_level = 8; }, "service_level is 8");
  refused([](RdmaOptions& o) { o.timeout = 0; }, "timeout is 0; allowed: 1 to 31");
  refused([](RdmaOptions& o) { o.retries = 8; }, "retries is 8");
  refused([](RdmaOptions& o) { o.slots = 1; }, "slots is 1; allowed: 2 to 256");
  refused([](RdmaOptions& o) { o.slot_bytes = 1024; }, "slot_bytes is 1024");
  refused([](RdmaOptions& o) { o.direct_bytes_min = 64; }, "direct_bytes_min is 64");
}

}  // namespace
}  // namespace dtrain::comm::rdma_connect_test
