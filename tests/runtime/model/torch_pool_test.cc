// LibTorch's threads leave their CPUs to others while they wait for work.
#include "runtime/model/torch_pool.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>

#include "ATen/Parallel.h"
#include "absl/time/clock.h"
#include "base/system/cgroup.h"

namespace dtrain::torch_pool_test {
namespace {

int Cpus() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

// The time of all threads of this process.
double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// The time that the pool takes while it has nothing to do, after 20 short operations.
double CpuSecondsOfWaits() {
  std::atomic<int64_t> elements{0};
  const double before = CpuSeconds();
  for (int i = 0; i < 20; ++i) {
    TorchParallelFor(64, 1, [&](int64_t begin, int64_t end) { elements += end - begin; });
    absl::SleepFor(absl::Milliseconds(20));
  }
  EXPECT_EQ(elements, 20 * 64);
  return CpuSeconds() - before;
}

TEST(TorchPoolTest, ThreadsThatFillTheCpusSleepBetweenOperations) {
  at::set_num_threads(std::max(2, Cpus()));
  CpuSecondsOfWaits();  // Starts the threads.
  const double by_default = CpuSecondsOfWaits();
  SleepBetweenOperations(kNoCpuQuota);
  absl::SleepFor(absl::Milliseconds(50));  // The team that sleeps for good begins with a spin.
  const double asleep = CpuSecondsOfWaits();
  // The environment may have chosen to sleep: then both are nearly nothing.
  EXPECT_LT(asleep, std::max(by_default / 3, 0.02));
}

}  // namespace
}  // namespace dtrain::torch_pool_test
