// The emulated device gives a right kernel's results in every order of its threads, and finds what
// is wrong with a wrong one.
#include "tests/device_emulation/device.h"

#include <cuda_runtime.h>
#include <sys/wait.h>

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "tests/device_emulation/wrong_kernels.h"

namespace dtrain::emulation::device_test {
namespace {

constexpr Order kOrders[] = {Order::kAscending, Order::kDescending};

constexpr int kAsan = 1;  // AddressSanitizer's exit code for a fault.

// `count` values on the device, in the beginning those of `host`.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& host) : count_(host.size()) {
    EXPECT_EQ(cudaMalloc(&data_, count_ * sizeof(T)), cudaSuccess);
    cudaMemcpy(data_, host.data(), count_ * sizeof(T), cudaMemcpyHostToDevice);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { cudaFree(data_); }
  T* get() const { return data_; }
  std::vector<T> Read() const {
    std::vector<T> host(count_);
    cudaMemcpy(host.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost);
    return host;
  }

 private:
  size_t count_;
  T* data_ = nullptr;
};

std::vector<float> WarpSums(Mistake mistake, Order order) {
  std::vector<float> values(256);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i);
  }
  const OnDevice<float> in(values);
  const OnDevice<float> out(std::vector<float>(256, -1.0F));
  SetOrder(order);
  LaunchWarpSums(mistake, in.get(), out.get());
  SetOrder(Order::kAscending);
  return out.Read();
}

std::vector<float> RightSums() {
  std::vector<float> sums(256);
  for (size_t i = 0; i < sums.size(); ++i) {
    const auto first = static_cast<float>(i - i % 32);
    sums[i] = 32 * first + 31 * 16;
  }
  return sums;
}

TEST(EmulatedDevice, GivesTheSumsOfWarpsInEveryOrder) {
  for (const Order order : kOrders) {
    EXPECT_EQ(WarpSums(Mistake::kNone, order), RightSums());
  }
}

// Warps write for each other: warp 7 for warp 0, and so on.
TEST(EmulatedDevice, AMissingBarrierGivesWrongResultsInEitherOrder) {
  for (const Order order : kOrders) {
    EXPECT_NE(WarpSums(Mistake::kNoBarrier, order), RightSums());
    EXPECT_NE(WarpSums(Mistake::kNoSecondBarrier, order), RightSums());
  }
}

// Twice: the first time leaves something there.
TEST(EmulatedDevice, SharedMemoryThatNobodyWroteIsNan) {
  for (const Order order : kOrders) {
    for (int repeat = 0; repeat < 2; ++repeat) {
      for (const float sum : WarpSums(Mistake::kUnwrittenShared, order)) {
        EXPECT_TRUE(std::isnan(sum)) << sum;
      }
    }
  }
}

TEST(EmulatedDeviceDeathTest, DifferentBarriersAreNamed) {
  EXPECT_DEATH(
      WarpSums(Mistake::kBarrierInABranch, Order::kAscending),
      "WarpSums<kMistake>, block .0, 0, 0., .*wrong_kernels.cu:1[0-9]: threads of a block meet at "
      "different barriers");
  EXPECT_DEATH(WarpSums(Mistake::kBarrierInAnotherFile, Order::kAscending),
               "another.cuh:8: threads of a block meet at different barriers, another at .*"
               "wrong_kernels.cu:8");
}

TEST(EmulatedDeviceDeathTest, ALaneThatHasLeftIsNamed) {
  EXPECT_DEATH(WarpSums(Mistake::kLeftTheWarp, Order::kAscending),
               "wrong_kernels.cu:3[0-9]: a lane waits for lane 16, which has left the kernel");
}

TEST(EmulatedDeviceDeathTest, ThreadsThatWaitForEachOtherAreNamed) {
  EXPECT_DEATH(WarpSums(Mistake::kShuffleInABranch, Order::kDescending),
               "no thread of the block can go on, 224 are done.*thread 5 waits at "
               ".*wrong_kernels.cu:28");
}

TEST(EmulatedDevice, CountsInBlocksOfAnyNumber) {
  for (const int64_t n : {1, 255, 256, 257, 1000}) {
    const OnDevice<int64_t> out(std::vector<int64_t>(static_cast<size_t>(n), -1));
    LaunchCount(n, 4, 256, out.get());
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    const std::vector<int64_t> got = out.Read();
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(got[static_cast<size_t>(i)], i);
    }
  }
}

TEST(EmulatedDevice, RefusesTheConfigurationsThatCudaRefuses) {
  const OnDevice<int64_t> out({-1});
  const unsigned refused[][2] = {{0, 256}, {1, 0}, {1, 1025}, {0x80000000U, 1}};
  for (const auto& [blocks, threads] : refused) {
    LaunchCount(1, blocks, threads, out.get());
    EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration) << blocks << " " << threads;
    EXPECT_EQ(out.Read()[0], -1);
  }
}

TEST(EmulatedDeviceDeathTest, LaunchBoundsHold) {
  const OnDevice<int64_t> out({-1});
  EXPECT_DEATH(LaunchCount(1, 1, 257, out.get()), "257 vs 256.*__launch_bounds__");
}

TEST(EmulatedDeviceDeathTest, AnAddressThatIsNoMultipleOfTheAccessIsNamed) {
  const OnDevice<float> in({0, 1, 2, 3, 4, 5, 6, 7});
  const OnDevice<float> out(std::vector<float>(8, -1.0F));
  LaunchCopyFour(in.get() + 4, out.get());
  EXPECT_EQ(out.Read(), (std::vector<float>{4, 5, 6, 7, -1, -1, -1, -1}));
  constexpr char kReport[] = "wrong_kernels.cu:[0-9:]*.*misaligned address";
  EXPECT_DEATH(LaunchCopyFour(in.get() + 2, out.get()), kReport);
  EXPECT_DEATH(LaunchCopyFour(in.get(), out.get() + 1), kReport);
}

TEST(EmulatedDeviceDeathTest, AWritePastTheEndOfMemoryIsFound) {
  const auto past_the_end = [](int64_t n) {
    const OnDevice<int64_t> out(std::vector<int64_t>(5, -1));
    LaunchCount(n, 1, 256, out.get());
  };
  EXPECT_DEATH(past_the_end(6), "wrote past the end of 40 bytes of device memory");
  // Beyond its last sixteen bytes the page faults at once; no check when it is freed is needed.
  const auto faulted = [](int status) {
    return !WIFEXITED(status) || WEXITSTATUS(status) == kAsan;
  };
  EXPECT_EXIT(past_the_end(7), faulted, "");
}

TEST(EmulatedDeviceDeathTest, AWriteBeforeTheBeginningOfMemoryIsFound) {
  const auto before = [] {
    const OnDevice<int64_t> out(std::vector<int64_t>(5, -1));
    LaunchCount(1, 1, 256, out.get() - 1);
  };
  EXPECT_DEATH(before(), "wrote before the beginning of 40 bytes of device memory");
}

}  // namespace
}  // namespace dtrain::emulation::device_test
