// Limits of cgroups, read from files as a kernel or a container shows them.
#include "base/system/cgroup.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/file.h"
#include "base/system/available_memory.h"

namespace dtrain::cgroup_test {
namespace {

constexpr double kHalf = 0.5;

class CgroupTest : public ::testing::Test {
 protected:
  CgroupTest() {
    char name[] = "/tmp/dtrain-cgroup-XXXXXX";
    DT_CHECK(mkdtemp(name) != nullptr);
    root_ = name;
    roots_ = {.proc = root_ + "/proc", .cgroup = root_ + "/cgroup"};
    Write("proc/meminfo", "MemTotal:  4000 kB\nMemFree: 1 kB\nMemAvailable:   3000 kB\n");
  }
  ~CgroupTest() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) const {
    const std::string file = root_ + "/" + path;
    DT_CHECK_OK(MakeDirectories(file.substr(0, file.rfind('/'))));
    DT_CHECK_OK(WriteFileAtomic(file, text));
  }
  void IsIn(const std::string& lines) const { Write("proc/self/cgroup", lines); }

  std::string root_;
  SystemRoots roots_;
};

TEST_F(CgroupTest, WithoutFilesThereIsNoLimit) {
  EXPECT_EQ(CpuQuota(roots_), kNoCpuQuota);
  EXPECT_EQ(ReadAvailableMemory(roots_).bytes(), 3000 * 1024);
  EXPECT_EQ(ReadAvailableMemory(roots_).machine_total_bytes, 4000 * 1024);
}

TEST_F(CgroupTest, AreThoseOfThisProcessAndAllAbove) {
  IsIn("3:cpu,cpuacct:/a\n2:memory:/m\n0::/pod/box\n");
  std::vector<std::string> found;
  for (const CgroupFolder& cgroup : CgroupFolders("cpu", roots_)) {
    found.push_back(absl::StrCat(cgroup.version, " ", cgroup.path, " ", cgroup.folder));
  }
  const std::string root = roots_.cgroup;
  EXPECT_EQ(found, (std::vector<std::string>{"1 /a " + root + "/cpu,cpuacct/a",
                                             "1 / " + root + "/cpu,cpuacct/",
                                             "2 /pod/box " + root + "/pod/box",
                                             "2 /pod " + root + "/pod", "2 / " + root + "/"}));
}

TEST_F(CgroupTest, KillsForLackOfMemoryAreCountedInEitherVersion) {
  IsIn("4:memory:/job\n");
  EXPECT_EQ(OomKills(roots_), std::nullopt);
  Write("cgroup/memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
  EXPECT_EQ(OomKills(roots_), 3);
  IsIn("0::/pod/box\n");
  const std::string events = "low 0\nhigh 0\nmax 9\noom 2\noom_kill 5\noom_group_kill 0\n";
  Write("cgroup/pod/memory.events", events);
  EXPECT_EQ(OomKills(roots_), 5) << "a container may see only the cgroup above its own";
}

TEST_F(CgroupTest, TheQuotaOfVersion2IsItsTimePerPeriod) {
  IsIn("0::/job\n");
  Write("cgroup/job/cpu.max", "50000 100000\n");
  EXPECT_DOUBLE_EQ(CpuQuota(roots_), kHalf);
  Write("cgroup/job/cpu.max", "max 100000\n");
  EXPECT_EQ(CpuQuota(roots_), kNoCpuQuota);
}

TEST_F(CgroupTest, TheTightestQuotaOfAllAncestorsCounts) {
  IsIn("0::/slice/pod/container\n");
  Write("cgroup/cpu.max", "6400000 100000\n");
  Write("cgroup/slice/cpu.max", "150000 100000\n");
  Write("cgroup/slice/pod/cpu.max", "max 100000\n");
  Write("cgroup/slice/pod/container/cpu.max", "400000 200000\n");
  EXPECT_DOUBLE_EQ(CpuQuota(roots_), 1.5);
}

TEST_F(CgroupTest, AContainerThatSeesOnlyItsRootHasTheQuotaThere) {
  IsIn("0::/docker/0123\n");
  Write("cgroup/cpu.max", "200000 100000\n");
  EXPECT_DOUBLE_EQ(CpuQuota(roots_), 2);
}

TEST_F(CgroupTest, TheQuotaOfVersion1IsFoundAmongControllersThatAreMountedTogether) {
  IsIn("9:name=systemd:/x\n4:memory:/m\n3:cpu,cpuacct:/a/b\n0::/\n");
  Write("cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us", "-1\n");
  Write("cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(CpuQuota(roots_), kNoCpuQuota);
  Write("cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "25000\n");
  Write("cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "50000\n");
  EXPECT_DOUBLE_EQ(CpuQuota(roots_), kHalf);
  // The link that some systems have for one of the controllers.
  Write("cgroup/cpu/a/b/cpu.cfs_quota_us", "10000\n");
  Write("cgroup/cpu/a/b/cpu.cfs_period_us", "100000\n");
  EXPECT_DOUBLE_EQ(CpuQuota(roots_), 0.1);
}

TEST_F(CgroupTest, NonsenseIsNoQuota) {
  IsIn("0::/job\nnonsense\n:\n");
  for (const char* text : {"", "x y\n", "100000\n", "0 100000\n", "100 0\n", "-5 100\n"}) {
    Write("cgroup/job/cpu.max", text);
    EXPECT_EQ(CpuQuota(roots_), kNoCpuQuota) << text;
  }
}

TEST_F(CgroupTest, TheMemoryLimitThatLeavesLeastCountsWhereverItStands) {
  IsIn("0::/pod/container\n");
  Write("cgroup/pod/container/memory.max", "900000\n");
  Write("cgroup/pod/container/memory.current", "100000\n");
  Write("cgroup/pod/memory.max", "1000000\n");
  Write("cgroup/pod/memory.current", "700000\n");
  Write("cgroup/pod/memory.stat", "anon 5\ninactive_file 100000\nactive_file 50000\n");
  const AvailableMemory memory = ReadAvailableMemory(roots_);
  EXPECT_EQ(memory.cgroup_bytes, 1000000 - (700000 - 150000));
  EXPECT_EQ(memory.cgroup_limit_bytes, 1000000);
  EXPECT_EQ(memory.bytes(), 450000);
}

TEST_F(CgroupTest, Version1SaysNoLimitByAVeryLargeNumber) {
  IsIn("4:memory:/\n");
  Write("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  Write("cgroup/memory/memory.usage_in_bytes", "5\n");
  EXPECT_EQ(ReadAvailableMemory(roots_).cgroup_limit_bytes, AvailableMemory::kNoLimit);
  EXPECT_EQ(ReadAvailableMemory(roots_).cgroup_bytes, AvailableMemory::kNoLimit);
}

TEST_F(CgroupTest, FileCacheAndReclaimableSlabAreAvailableButNotMoreThanTheLimit) {
  IsIn("0::/job\n");
  Write("cgroup/job/memory.max", "1000000\n");
  Write("cgroup/job/memory.current", "800000\n");
  Write("cgroup/job/memory.stat",
        "anon 7\ninactive_file 100000\nactive_file 20000\nslab_reclaimable 3000\n");
  EXPECT_EQ(ReadAvailableMemory(roots_).cgroup_bytes, 1000000 - (800000 - 123000));
  // Read a moment after its parts, so it may be smaller than their sum.
  Write("cgroup/job/memory.current", "100000\n");
  EXPECT_EQ(ReadAvailableMemory(roots_).cgroup_bytes, 1000000);
  Write("cgroup/job/memory.current", "1500000\n");
  EXPECT_EQ(ReadAvailableMemory(roots_).cgroup_bytes, 0) << "over its limit, for a moment";
  Write("cgroup/job/memory.max", "max\n");
  EXPECT_EQ(ReadAvailableMemory(roots_).cgroup_bytes, AvailableMemory::kNoLimit);
}

TEST_F(CgroupTest, TheLimitOfVersion1CountsCacheOfAllBelow) {
  IsIn("4:memory:/job\n");
  Write("cgroup/memory/job/memory.limit_in_bytes", "1000000\n");
  Write("cgroup/memory/job/memory.usage_in_bytes", "600000\n");
  Write("cgroup/memory/job/memory.stat",
        "inactive_file 1\ntotal_inactive_file 100000\ntotal_active_file 20000\n");
  const AvailableMemory memory = ReadAvailableMemory(roots_);
  EXPECT_EQ(memory.cgroup_bytes, 1000000 - (600000 - 120000));
  EXPECT_EQ(memory.cgroup_limit_bytes, 1000000);
}

TEST_F(CgroupTest, ProcessesAreToldApartByTheCgroupWhoseLimitCounts) {
  const auto cgroup_of = [&](const std::string& path) {
    IsIn("0::" + path + "\n");
    return ReadAvailableMemory(roots_).cgroup;
  };
  Write("cgroup/a/memory.max", "1000000\n");
  Write("cgroup/a/memory.current", "0\n");
  Write("cgroup/b/memory.max", "1000000\n");
  Write("cgroup/b/memory.current", "0\n");
  EXPECT_NE(cgroup_of("/a"), cgroup_of("/b"));
  EXPECT_EQ(cgroup_of("/a/x"), cgroup_of("/a/y")) << "they share the limit of their parent";
}

TEST_F(CgroupTest, MemoryThatCannotBeReadIsWithoutLimit) {
  Write("proc/meminfo", "MemTotal:  4000 kB\n");
  EXPECT_EQ(ReadAvailableMemory(roots_).machine_bytes, AvailableMemory::kNoLimit);
  EXPECT_EQ(ReadAvailableMemory(roots_).machine_total_bytes, 4000 * 1024);
}

TEST_F(CgroupTest, TheTightestLimitOnProcessesCountsWhereverItStands) {
  EXPECT_EQ(PidsLimit(roots_), std::nullopt);
  IsIn("0::/pod/container\n");
  EXPECT_EQ(PidsLimit(roots_), std::nullopt) << "no file";
  Write("cgroup/pod/container/pids.max", "max\n");
  EXPECT_EQ(PidsLimit(roots_), std::nullopt);
  Write("cgroup/pod/pids.max", "300\n");
  EXPECT_EQ(PidsLimit(roots_), 300);
  Write("cgroup/pod/container/pids.max", "200\n");
  EXPECT_EQ(PidsLimit(roots_), 200);
  Write("cgroup/pod/container/pids.max", "400\n");
  EXPECT_EQ(PidsLimit(roots_), 300);
  IsIn("5:pids:/job\n4:memory:/pod\n");
  Write("cgroup/pids/job/pids.max", "64\n");
  EXPECT_EQ(PidsLimit(roots_), 64);
}

TEST(CpusWithin, RoundsDownToAtLeastOne) {
  EXPECT_EQ(CpusWithin(kNoCpuQuota, 8), 8);
  EXPECT_EQ(CpusWithin(8, 8), 8);
  EXPECT_EQ(CpusWithin(7.9, 8), 7);
  EXPECT_EQ(CpusWithin(kHalf, 8), 1);
  EXPECT_EQ(CpusWithin(100, 8), 8);
  EXPECT_EQ(CpusWithin(kNoCpuQuota, 0), 1);
}

}  // namespace
}  // namespace dtrain::cgroup_test
