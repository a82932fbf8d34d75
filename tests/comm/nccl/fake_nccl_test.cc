// Tests of the fake of NCCL, because a test that passes on a fake which notices no mistake proves
// nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/time/time.h"
#include "tests/comm/nccl/forked_ranks.h"

namespace dtrain::comm::fake_nccl_test {
namespace {

using testing::Contains;
using testing::HasSubstr;

TEST(FakeNccl, NoticesEachWrongUse) {
  FakeFabric fabric;
  FakeCuda cuda(2);
  FakeNccl nccl(&fabric, &cuda);
  NcclUniqueId id = {};
  ASSERT_EQ(nccl.GetUniqueId(&id), NcclResult::kSuccess);
  NcclComm* comm = nullptr;
  ASSERT_EQ(nccl.CommInitRankConfig(&comm, 1, id, 0, "x"), NcclResult::kInProgress);
  void* device = nullptr;
  ASSERT_EQ(cuda.MallocDevice(&device, 64), CudaResult::kSuccess);
  const auto reduce = [&](void* data) {
    return nccl.AllReduce(data, data, 4, NcclDType::kFloat32, NcclReduceOp::kSum, comm, nullptr);
  };
  EXPECT_EQ(reduce(device), NcclResult::kInvalidUsage);
  EXPECT_THAT(nccl.violations(), Contains(HasSubstr("busy or not ready")));
  NcclResult state = NcclResult::kInProgress;
  while (state == NcclResult::kInProgress) {
    ASSERT_EQ(nccl.CommGetAsyncError(comm, &state), NcclResult::kSuccess);
  }
  float host[4] = {};
  EXPECT_EQ(reduce(host), NcclResult::kInvalidUsage);
  EXPECT_THAT(nccl.violations(), Contains(HasSubstr("not the device's")));
  EXPECT_EQ(reduce(static_cast<char*>(device) + 56),
            NcclResult::kInvalidUsage);  // It ends behind the memory.
  CudaStream* elsewhere = nullptr;
  ASSERT_EQ(cuda.SetDevice(1), CudaResult::kSuccess);
  ASSERT_EQ(cuda.StreamCreate(&elsewhere, false), CudaResult::kSuccess);
  EXPECT_EQ(
      nccl.AllReduce(device, device, 4, NcclDType::kFloat32, NcclReduceOp::kSum, comm, elsewhere),
      NcclResult::kInvalidUsage);
  EXPECT_THAT(nccl.violations(), Contains(HasSubstr("a stream of another device")));
  ASSERT_EQ(cuda.SetDevice(0), CudaResult::kSuccess);
  void* handle = nullptr;
  EXPECT_EQ(nccl.CommRegister(comm, device, 64, &handle), NcclResult::kSuccess);
  EXPECT_EQ(nccl.GroupEnd(), NcclResult::kInvalidUsage);
  EXPECT_EQ(nccl.CommDestroy(comm), NcclResult::kSuccess);
  EXPECT_THAT(nccl.violations(), Contains(HasSubstr("CommDestroy before CommFinalize")));
  EXPECT_THAT(nccl.violations(), Contains(HasSubstr("CommDestroy with registered buffers")));
  EXPECT_EQ(reduce(device), NcclResult::kInvalidUsage);
  EXPECT_THAT(nccl.violations(), Contains(HasSubstr("does not exist")));
}

TEST(FakeNccl, NoticesASecondThreadOnACommunicator) {
  FakeFabric fabric;
  FakeCuda cuda;
  FakeNcclFaults quiet;
  quiet.polls_in_progress = 0;
  FakeNccl nccl(&fabric, &cuda, quiet);
  NcclUniqueId id = {};
  ASSERT_EQ(nccl.GetUniqueId(&id), NcclResult::kSuccess);
  NcclComm* comm = nullptr;
  ASSERT_EQ(nccl.CommInitRankConfig(&comm, 1, id, 0, "x"), NcclResult::kInProgress);
  std::atomic<bool> stop{false};
  const auto poll = [&] {
    NcclResult state = NcclResult::kSuccess;
    while (!stop) {
      (void)nccl.CommGetAsyncError(comm, &state);
    }
  };
  std::thread first(poll);
  std::thread second(poll);
  const Deadline deadline = Deadline::After(absl::Seconds(30));
  while (nccl.violations().empty() && !deadline.Expired()) {
    std::this_thread::yield();
  }
  stop = true;
  first.join();
  second.join();
  EXPECT_THAT(nccl.violations(), Contains(HasSubstr("another thread")));
}

}  // namespace
}  // namespace dtrain::comm::fake_nccl_test
