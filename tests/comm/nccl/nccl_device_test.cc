// An NCCL group whose device is not the default one, called by threads that never chose a device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "tests/comm/nccl/forked_ranks.h"

namespace dtrain::comm::nccl_device_test {
namespace {

constexpr size_t kCount = 1000;

template <typename Body>
void OnFreshThread(Body body) {
  std::thread thread(body);
  thread.join();
}

TEST(NcclDevice, CallsOfThreadsThatNeverChoseADeviceUseTheGroups) {
  RunRanks(2, [](FakeRank& self) {
    self.options.device = 1;
    auto group = self.MakeGroup();
    ASSERT_NE(group, nullptr);
    const Buffer buffer{self.Allocate(kCount * sizeof(float)),
                        kCount * sizeof(float),
                        DType::kFloat32,
                        {DeviceKind::kCuda, 1}};
    const auto reduce = [&](NcclGroup& in) {
      const auto work = in.AllReduce(buffer, ReduceOp::kMax);
      ASSERT_TRUE(work.ok()) << work.status();
      EXPECT_TRUE(work->Wait(Deadline::After(absl::Seconds(30))).ok());
    };
    OnFreshThread([&] { reduce(*group); });
    OnFreshThread([&] { EXPECT_TRUE(group->JoinStream(nullptr).ok()); });
    std::unique_ptr<Registration> registration;
    OnFreshThread([&] {
      auto registered = group->RegisterDevice(buffer.data, buffer.bytes);
      ASSERT_TRUE(registered.ok()) << registered.status();
      EXPECT_EQ(self.cuda.current_device(), 1);
      registration = *std::move(registered);
    });
    std::unique_ptr<NcclGroup> other;
    OnFreshThread([&] {
      auto split = group->Split(0, self.rank, "other");
      ASSERT_TRUE(split.ok()) << split.status();
      other = *std::move(split);
    });
    ASSERT_NE(other, nullptr);
    OnFreshThread([&] { reduce(*other); });
    other.reset();
    registration.reset();
    group.reset();
    self.ExpectClean();
  });
}

}  // namespace
}  // namespace dtrain::comm::nccl_device_test
