// The group of a job's GPUs, made over the fakes: the least time limits that it learns, by what
// carries its messages.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <memory>
#include <optional>
#include <vector>

#include "ATen/ATen.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "comm/call_timeout.h"
#include "comm/nccl/fake/fake_cuda.h"
#include "comm/nccl/fake/fake_fabric.h"
#include "comm/nccl/fake/fake_kernels.h"
#include "comm/nccl/fake/fake_nccl.h"
#include "comm/nccl/nccl_group.h"
#include "runtime/job/job_device.h"
#include "tests/runtime/testing/job_for_tests.h"

namespace dtrain::device_group_test {
namespace {

using testing::RankContext;

// The transport between two ranks decides the least limit that their group then learns.
struct Row {
  bool one_node = true;
  const char* nccl_timeout = nullptr;  // NCCL_IB_TIMEOUT.
  std::optional<absl::Duration> configured = {};
  absl::Duration least;
};

const std::vector<Row>& Rows() {
  static const std::vector<Row> rows = {
      {.least = comm::kLeastDeviceTimeout},
      {.nccl_timeout = "22", .least = comm::kLeastDeviceTimeout},
      {.one_node = false, .least = comm::RetryBudget({.timeout = 20, .retries = 7})},
      {.one_node = false,
       .nccl_timeout = "22",
       .least = comm::RetryBudget({.timeout = 22, .retries = 7})},
      {.one_node = false, .nccl_timeout = "10", .least = comm::kLeastDeviceTimeout},
      {.one_node = false, .configured = absl::Seconds(5), .least = absl::Seconds(5)},
  };
  return rows;
}

// Makes the group of each row and compares its limits.
absl::Status CompareLimits(RankContext& context, comm::FakeFabric* fabric) {
  comm::FakeCuda cuda;
  comm::FakeNccl nccl(fabric, &cuda);
  comm::NcclSeams seams;
  seams.nccl = &nccl;
  seams.cuda = &cuda;
  seams.kernels = comm::MakeFakeKernels(&cuda);
  const testing::TempFolder folder;
  DT_ASSIGN_OR_RETURN(auto job, testing::MakeTestJob({.run_dir = folder.path(),
                                                      .overrides = {"train_batch_size=2"},
                                                      .rank = &context}));
  Job::State& state = job->state();
  CudaParts parts;
  parts.api = &cuda;
  parts.compute_stream = cuda.host_stream();
  parts.tensors = at::Device(at::kCPU);
  state.device = std::make_unique<Device>(parts);
  comm::GroupOptions hosts = context.group_options();
  for (const Row& row : Rows()) {
    if (row.nccl_timeout == nullptr) {
      unsetenv("NCCL_IB_TIMEOUT");
    } else {
      setenv("NCCL_IB_TIMEOUT", row.nccl_timeout, 1);
    }
    state.env.local_world_size = row.one_node ? context.size : 1;
    hosts.timeout_min = row.configured;
    ++hosts.epoch;  // Each group has its own names in the store.
    DT_RETURN_IF_ERROR(MakeDeviceGroup(state, DeviceTransport::kNccl, seams, hosts));
    const auto* const group = dynamic_cast<const comm::NcclGroup*>(state.device_group.get());
    if (group == nullptr || group->limits().least != row.least) {
      return absl::InternalError(absl::StrCat(
          "row ", &row - Rows().data(), ": ",
          group == nullptr ? "no NCCL group" : absl::FormatDuration(group->limits().least)));
    }
    state.device_group.reset();
  }
  return absl::OkStatus();
}

TEST(DeviceGroupTest, LearnsNoShorterLimitThanTheRetriesOfItsConnectionsTake) {
  comm::FakeFabric fabric;
  const auto results = testing::RunRanks(
      {.size = 2}, [&](RankContext& context) { return CompareLimits(context, &fabric); });
  for (const auto& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

// A staged group's messages are the hosts': over RDMA with dtrain's own retries.
TEST(DeviceGroupTest, AStagedGroupAllowsForTheHostsRetries) {
  Job::State state;
  state.env.world_size = 2;
  comm::GroupOptions hosts;
  hosts.rdma.timeout = 20;
  hosts.rdma.retries = 3;
  state.env.local_world_size = 1;
  const comm::GroupOptions apart = DeviceGroupOptions(state, DeviceTransport::kStaged, hosts);
  EXPECT_EQ(apart.timeout_min, comm::RetryBudget({.timeout = 20, .retries = 3}));
  EXPECT_EQ(apart.name, "device");
  state.env.local_world_size = 2;
  EXPECT_EQ(DeviceGroupOptions(state, DeviceTransport::kStaged, hosts).timeout_min,
            comm::kLeastDeviceTimeout);
}

}  // namespace
}  // namespace dtrain::device_group_test
