// RDMA's settings, from the keys of a configuration to the attributes with which a queue pair is
// connected. All numbers differ, so that none can stand in the place of another.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "comm/transport/rdma/fake/fake_verbs.h"
#include "runtime/job/group_options.h"
#include "tests/testing/cluster.h"

namespace dtrain::rdma_settings_test {
namespace {

using testing::RankContext;

constexpr char kConfig[] = R"({
  "train_batch_size": 2,
  "comm": {"transport": "rdma",
           "rdma": {"device": "fake0", "gid_index": 9, "queue_pairs": 2, "traffic_class": 106,
                    "service_level": 3, "timeout": 17, "retries": 5}}})";

// Port 2, an MTU of `mtu_bytes`, and GIDs 4 and 9 of this process.
comm::RdmaPort PortWithTwoGids(int mtu_bytes) {
  comm::RdmaPort port = comm::FakePort();
  port.number = 2;
  port.mtu_bytes = mtu_bytes;
  port.gids.push_back(port.gids.front());
  port.gids[0].index = 4;
  port.gids[1].index = 9;
  return port;
}

absl::Status ExpectSettings(const comm::QueuePairSettings& is) {
  const std::vector<int> values = {is.port,          is.gid_index, is.mtu_bytes, is.traffic_class,
                                   is.service_level, is.timeout,   is.retries};
  // The MTU is the smaller one of both ports'.
  const std::vector<int> wanted = {2, 9, 2048, 106, 3, 17, 5};
  return values == wanted
             ? absl::OkStatus()
             : absl::InternalError(absl::StrFormat(
                   "port %d, GID %d, MTU %d, traffic class %d, service level %d, timeout %d, "
                   "retries %d",
                   is.port, is.gid_index, is.mtu_bytes, is.traffic_class, is.service_level,
                   is.timeout, is.retries));
}

absl::Status ConnectAsConfigured(RankContext& context) {
  DT_ASSIGN_OR_RETURN(const Config config, Config::Parse(kConfig, "rdma.json", {}, context.size));
  comm::FakeVerbsFaults faults;
  faults.ports = {PortWithTwoGids(context.rank == 0 ? 4096 : 2048)};
  faults.connected = std::make_shared<std::vector<comm::QueuePairSettings>>();
  comm::FakeVerbs verbs(faults);
  const comm::GroupOptions own = context.group_options();
  comm::GroupOptions options = GroupOptionsFrom(config);
  options.rank = own.rank;
  options.size = own.size;
  options.host_address = own.host_address;
  options.job_key = own.job_key;
  options.node_id = absl::StrCat("host", own.rank);
  options.rdma.verbs = &verbs;
  DT_ASSIGN_OR_RETURN(auto group, comm::CreateHostGroup(context.store, options));
  DT_RETURN_IF_ERROR(group->Barrier(Deadline::Infinite()));
  if (group->transport() != "rdma" || faults.connected->size() != 2) {
    return absl::InternalError(
        absl::StrFormat("%s, %d queue pairs", group->transport(), faults.connected->size()));
  }
  for (const comm::QueuePairSettings& settings : *faults.connected) {
    DT_RETURN_IF_ERROR(ExpectSettings(settings));
  }
  return absl::OkStatus();
}

TEST(RdmaSettingsTest, EveryKeyReachesTheQueuePairsUnderItsOwnName) {
  for (const auto& result : testing::RunRanks({.size = 2}, ConnectAsConfigured)) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

}  // namespace
}  // namespace dtrain::rdma_settings_test
