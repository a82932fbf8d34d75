// Memory that is freed and allocated again causes no page faults, unless the user tuned the heap.
#include "base/system/kept_heap.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace dtrain::kept_heap_test {
namespace {

constexpr size_t kBlock = 24 << 20;  // 6,144 pages.
constexpr int64_t kMuch = int64_t{16} << 30;

void Touch(void* block) { std::memset(block, 1, kBlock); }

// Allocates three blocks, touches and frees them.
void TakeAndFree() {
  void* blocks[3];
  for (void*& block : blocks) {
    block = malloc(kBlock);
    Touch(block);
  }
  for (void* block : blocks) {
    free(block);
  }
}

// Page faults of allocating three blocks after `prepare`, in a process of its own.
template <class Prepare>
long FaultsIn(Prepare prepare) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    // Huge pages, which a system may give unasked, have few faults.
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    prepare();
    rusage before{};
    getrusage(RUSAGE_SELF, &before);
    TakeAndFree();
    rusage after{};
    getrusage(RUSAGE_SELF, &after);
    const long faults = after.ru_minflt - before.ru_minflt;
    _exit(write(ends[1], &faults, sizeof(faults)) == sizeof(faults) ? 0 : 1);
  }
  close(ends[1]);  // A child that dies ends the read.
  long faults = -1;
  EXPECT_EQ(read(ends[0], &faults, sizeof(faults)), static_cast<ssize_t>(sizeof(faults)));
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  close(ends[0]);
  return faults;
}

// Page faults of allocating blocks that were allocated and freed before.
long FaultsOfTakingAgain(const Environment& environment, int64_t available) {
  return FaultsIn([&] {
    KeepFreedMemory(environment, available);
    for (int turn = 0; turn < 3; ++turn) {
      TakeAndFree();
    }
  });
}

class KeepFreedMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a sanitizer's allocator is in the place of glibc's";
#endif
  }
};

TEST_F(KeepFreedMemoryTest, WhatIsTakenAgainIsStillThere) {
  EXPECT_LT(FaultsOfTakingAgain({}, kMuch), 100);
}

TEST_F(KeepFreedMemoryTest, NothingIsKeptWhereMemoryIsScarce) {
  EXPECT_GT(FaultsOfTakingAgain({}, kMuch / 32), 1000);
}

TEST_F(KeepFreedMemoryTest, AHeapThatTheUserTunedIsLeftAlone) {
  for (const char* name : {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"}) {
    EXPECT_GT(FaultsOfTakingAgain({{name, "1"}}, kMuch), 1000) << name;
  }
}

TEST_F(KeepFreedMemoryTest, WarmedMemoryIsTakenWithoutFaults) {
  const auto faults = [](int64_t warmed) {
    return FaultsIn([&] {
      KeepFreedMemory({}, kMuch);
      WarmFreedMemory(warmed);
    });
  };
  EXPECT_GT(faults(0), 3 * 6000);
  EXPECT_LT(faults(4 * kBlock), 100);
}

}  // namespace
}  // namespace dtrain::kept_heap_test
