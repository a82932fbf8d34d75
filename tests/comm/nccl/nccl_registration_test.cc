// Registrations of an NCCL group over the fake, which counts them by pages as NCCL does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "tests/comm/nccl/forked_ranks.h"

namespace dtrain::comm::nccl_registration_test {
namespace {

using testing::Contains;

int64_t Count(FakeRank& self, const char* call) {
  const auto calls = self.nccl.calls();
  return std::count(calls.begin(), calls.end(), call);
}

TEST(NcclRegistration, RangesWithinTheSamePagesAreEachDeregistered) {
  RunRanks(2, [](FakeRank& self) {
    auto group = self.MakeGroup();
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const auto memory = reinterpret_cast<uintptr_t>(self.Allocate(3 * page));
    auto* const aligned = reinterpret_cast<char*>((memory + page - 1) / page * page);
    auto whole = group->RegisterDevice(aligned, 2 * page);
    auto first = group->RegisterDevice(aligned, 100);
    auto second = group->RegisterDevice(aligned + page, 100);
    ASSERT_TRUE(whole.ok() && first.ok() && second.ok());
    whole->reset();
    second->reset();
    EXPECT_EQ(Count(self, "CommDeregister"), 2);
    first->reset();
    EXPECT_EQ(Count(self, "CommDeregister"), 3);
    // A range that is registered there next is another registration.
    auto again = group->RegisterDevice(aligned, 100);
    ASSERT_TRUE(again.ok());
    group.reset();
    EXPECT_EQ(Count(self, "CommDeregister"), 4);
    self.ExpectClean();
  });
}

TEST(NcclRegistration, ADeregistrationWaitsForTheCallThatAnotherThreadMakes) {
  RunRanks(2, [](FakeRank& self) {
    auto group = self.MakeGroup();
    constexpr size_t kBytes = 4096;
    void* const memory = self.Allocate(kBytes);
    auto registration = group->RegisterDevice(memory, kBytes);
    ASSERT_TRUE(registration.ok());
    self.nccl.HoldCalls(true);
    std::thread reduces([&] {
      const auto work = group->AllReduce({memory, kBytes, DType::kFloat32, {DeviceKind::kCuda, 0}},
                                         ReduceOp::kSum);
      EXPECT_TRUE(work.ok()) << work.status();
    });
    while (Count(self, "AllReduce") == 0) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    std::thread drops([&] { registration->reset(); });
    // A deregistration that waits for nothing has come by then.
    const Deadline bound = Deadline::After(absl::Milliseconds(300));
    while (Count(self, "CommDeregister") == 0 && !bound.Expired()) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    EXPECT_EQ(Count(self, "CommDeregister"), 0);
    self.nccl.HoldCalls(false);
    reduces.join();
    drops.join();
    EXPECT_THAT(self.nccl.calls(), Contains("CommDeregister"));
    group.reset();
    self.ExpectClean();
  });
}

}  // namespace
}  // namespace dtrain::comm::nccl_registration_test
