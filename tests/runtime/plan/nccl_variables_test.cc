#include "runtime/plan/nccl_variables.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::plan::nccl_variables_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> Told(const std::string& json, const Environment& environment = {}) {
  const auto config =
      Config::Parse("{\"train_batch_size\": 1, \"comm\": " + json + "}", "a.json", {}, 1);
  EXPECT_TRUE(config.ok()) << config.status();
  std::vector<std::string> told;
  for (const LibraryVariable& variable : NcclVariables(*config, environment)) {
    told.push_back(variable.name + "=" + variable.value + " " + variable.reason);
  }
  return told;
}

TEST(NcclVariablesTest, NothingIsToldWhereNothingIsConfigured) {
  EXPECT_THAT(Told("{}"), IsEmpty());
  EXPECT_THAT(Told(R"({"interface": "", "rdma": {"device": "", "gid_index": -1}})"), IsEmpty());
}

// The right-hand side: NCCL's user guide, section "Environment Variables".
TEST(NcclVariablesTest, EveryKeyOfTheNetworkIsTold) {
  EXPECT_THAT(Told(R"({"interface": "eth1",
               "rdma": {"device": "mlx5_1", "gid_index": 3, "queue_pairs": 2, "traffic_class": 106,
                        "service_level": 5, "timeout": 22, "retries": 4}})"),
              ElementsAre("NCCL_SOCKET_IFNAME==eth1 because comm.interface is eth1",
                          "NCCL_IB_HCA==mlx5_1 because comm.rdma.device is mlx5_1",
                          "NCCL_IB_GID_INDEX=3 because comm.rdma.gid_index is 3",
                          "NCCL_IB_QPS_PER_CONNECTION=2 because comm.rdma.queue_pairs is 2",
                          "NCCL_IB_TC=106 because comm.rdma.traffic_class is 106",
                          "NCCL_IB_SL=5 because comm.rdma.service_level is 5",
                          "NCCL_IB_TIMEOUT=22 because comm.rdma.timeout is 22",
                          "NCCL_IB_RETRY_CNT=4 because comm.rdma.retries is 4"));
}

TEST(NcclVariablesTest, ADefaultThatIsWrittenOutIsGivenAndZeroIsAValue) {
  EXPECT_THAT(Told(R"({"rdma": {"traffic_class": 0, "timeout": 18}})"),
              ElementsAre("NCCL_IB_TC=0 because comm.rdma.traffic_class is 0",
                          "NCCL_IB_TIMEOUT=18 because comm.rdma.timeout is 18"));
}

TEST(NcclVariablesTest, WhatTheUserSetIsKept) {
  EXPECT_THAT(Told(R"({"interface": "eth1", "rdma": {"traffic_class": 106}})",
                   {{"NCCL_SOCKET_IFNAME", "ib"}, {"NCCL_IB_TC", ""}}),
              IsEmpty());
}

TEST(NcclRetriesTest, AreTheEnvironmentsOrNcclsOwn) {
  const auto in = [](const Environment& environment) {
    const NcclRetries retries = NcclRetriesIn(environment);
    return std::pair(retries.timeout, retries.retries);
  };
  EXPECT_EQ(in({}), std::pair(20, 7));
  EXPECT_EQ(in({{"NCCL_IB_TIMEOUT", "22"}}), std::pair(22, 7));
  EXPECT_EQ(in({{"NCCL_IB_TIMEOUT", "14"}, {"NCCL_IB_RETRY_CNT", "2"}}), std::pair(14, 2));
  EXPECT_EQ(in({{"NCCL_IB_TIMEOUT", "long"}, {"NCCL_IB_RETRY_CNT", "-1"}}), std::pair(20, 7));
}

}  // namespace
}  // namespace dtrain::plan::nccl_variables_test
