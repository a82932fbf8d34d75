// SymmetricBuffers in huge pages. The tests make the kernel grant some, which needs root, and
// restore its settings; they run alone, because the settings hold for the whole machine. Ranks are
// processes of their own, so that this one can restore the settings after a SIGBUS there.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "comm/group.h"
#include "comm/shared_mapping.h"
#include "comm/symmetric_buffer.h"
#include "tests/testing/cluster.h"

namespace dtrain::comm::huge_pages_test {
namespace {

using ::dtrain::testing::RankContext;
using ::dtrain::testing::RankResult;
using ::dtrain::testing::RunRanks;

std::string ReadText(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool WriteText(const char* path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.flush();
  return file.good();
}

// A setting of the kernel, which the destructor restores.
class KernelSetting {
 public:
  KernelSetting(const char* path, std::string before) : path_(path), before_(std::move(before)) {}
  KernelSetting(const KernelSetting&) = delete;
  KernelSetting& operator=(const KernelSetting&) = delete;
  ~KernelSetting() {
    if (changed_ && !WriteText(path_, before_)) {
      ADD_FAILURE() << "set " << path_ << " back to " << before_ << " by hand";
    }
  }
  bool Set(const std::string& value) {
    changed_ = WriteText(path_, value) || changed_;
    return changed_;
  }

 private:
  const char* const path_;
  const std::string before_;
  bool changed_ = false;
};

// The number behind `name` in a file of lines "name number".
int64_t NumberIn(const char* path, const std::string& name) {
  const std::string text = ReadText(path);
  const size_t at = text.find(name);
  return at == std::string::npos ? 0 : std::atoll(text.c_str() + at + name.size());
}

int64_t FreeHugePages() { return NumberIn("/proc/meminfo", "HugePages_Free:"); }

struct Area {
  uint64_t start = 0;
  uint64_t end = 0;
  int64_t page_kib = 0;  // KernelPageSize.
  // Part of it that is mapped by huge pages of shared memory, not of the pool.
  int64_t huge_map_kib = 0;
  bool Holds(const void* address) const {
    const auto at = reinterpret_cast<uint64_t>(address);
    return start <= at && at < end;
  }
};

// The memory areas of this process, from /proc/self/smaps.
std::vector<Area> Areas() {
  std::istringstream smaps(ReadText("/proc/self/smaps"));
  std::vector<Area> areas;
  for (std::string line; std::getline(smaps, line);) {
    uint64_t start = 0;
    uint64_t end = 0;
    int64_t value = 0;
    if (sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " ", &start, &end) == 2) {
      areas.push_back({start, end});
    } else if (areas.empty()) {
      continue;
    } else if (sscanf(line.c_str(), "KernelPageSize: %" SCNd64, &value) == 1) {
      areas.back().page_kib = value;
    } else if (sscanf(line.c_str(), "ShmemPmdMapped: %" SCNd64, &value) == 1 ||
               sscanf(line.c_str(), "FilePmdMapped: %" SCNd64, &value) == 1) {
      areas.back().huge_map_kib += value;
    }
  }
  return areas;
}

Area AreaAt(const void* address) {
  for (const Area& area : Areas()) {
    if (area.Holds(address)) {
      return area;
    }
  }
  return {};
}

int AreasOfPoolPages() {
  int count = 0;
  for (const Area& area : Areas()) {
    count += area.page_kib == 2048 ? 1 : 0;
  }
  return count;
}

absl::Status Expect(bool holds, const std::string& what) {
  return holds ? absl::OkStatus() : absl::InternalError(what);
}

// Checks that every byte is zero at first and can be written.
absl::Status Fill(const SymmetricBuffer& buffer) {
  auto* const data = static_cast<char*>(buffer.data());
  for (const size_t at : {size_t{0}, buffer.bytes() / 2, buffer.bytes() - 1}) {
    DT_RETURN_IF_ERROR(Expect(data[at] == 0, absl::StrFormat("byte %d is not zero", at)));
  }
  std::memset(data, 7, buffer.bytes());
  return absl::OkStatus();
}

// A test sets the number of free pages in the pool and relies on no others.
class PoolOfHugePagesTest : public ::testing::Test {
 protected:
  static constexpr const char* kPool = "/proc/sys/vm/nr_hugepages";

  // Adds `pages` to the pool; false, with the reason in `why_not_`, if that is not possible.
  bool Reserve(int64_t pages) {
    if (geteuid() != 0) {
      why_not_ = "only root can reserve huge pages";
      return false;
    }
    const std::string before = ReadText(kPool);
    if (before.empty()) {
      why_not_ = "this kernel has no pool of huge pages";
      return false;
    }
    if (NumberIn("/proc/meminfo", "Hugepagesize:") != 2048) {
      why_not_ = "this host's huge pages are not of 2 MiB";
      return false;
    }
    const int64_t free_before = FreeHugePages();
    setting_.emplace(kPool, before);
    if (!setting_->Set(absl::StrCat(std::atoll(before.c_str()) + pages))) {
      why_not_ = absl::StrCat(kPool, " cannot be written here");
      return false;
    }
    if (FreeHugePages() != free_before + pages) {
      why_not_ = absl::StrFormat("the kernel gave %d of %d huge pages",
                                 FreeHugePages() - free_before, pages);
      return false;
    }
    if (free_before != 0 || std::atoll(ReadText("/proc/sys/vm/nr_overcommit_hugepages").c_str())) {
      why_not_ = "this host's huge pages are in others' use: how many are free would be a guess";
      return false;
    }
    return true;
  }

  static void RunAll(int size, const testing::RankBody& body) {
    for (const RankResult& result : RunRanks({.size = size}, body)) {
      EXPECT_TRUE(result.status.ok()) << result.status << " signal " << result.signal;
    }
  }

  std::string why_not_;

 private:
  std::optional<KernelSetting> setting_;
};

#define DT_RESERVE_OR_SKIP(pages)               \
  if (!Reserve(pages)) {                        \
    GTEST_SKIP() << "NOT TESTED: " << why_not_; \
  }

TEST_F(PoolOfHugePagesTest, HoldsBuffersOfEverySizeFromAPageOn) {
  DT_RESERVE_OR_SKIP(4)
  RunAll(1, [](RankContext&) -> absl::Status {
    for (const size_t bytes : {kHugePageBytes, kHugePageBytes + 1, 2 * kHugePageBytes - 4096,
                               3 * kHugePageBytes + 12345, 4 * kHugePageBytes}) {
      DT_ASSIGN_OR_RETURN(const auto buffer, SymmetricBuffer::Create(bytes, "pool"));
      DT_RETURN_IF_ERROR(Fill(*buffer));
      const Area area = AreaAt(buffer->data());
      const size_t pages = (bytes + kHugePageBytes - 1) / kHugePageBytes;
      DT_RETURN_IF_ERROR(Expect(area.page_kib == 2048, absl::StrFormat("%d bytes in pages of %d "
                                                                       "KiB",
                                                                       bytes, area.page_kib)));
      DT_RETURN_IF_ERROR(Expect(area.end - area.start == pages * kHugePageBytes,
                                absl::StrFormat("%d bytes fill %d", bytes, area.end - area.start)));
      DT_RETURN_IF_ERROR(Expect(buffer->bytes() == bytes, "another size"));
      DT_RETURN_IF_ERROR(
          Expect(MappedPoolBytes() == static_cast<int64_t>(pages * kHugePageBytes), "not counted"));
      DT_RETURN_IF_ERROR(Expect(ftruncate(buffer->fd(), 0) == -1, "its size is not sealed"));
      DT_RETURN_IF_ERROR(Expect(FreeHugePages() == 4 - static_cast<int64_t>(pages), "free pages"));
    }
    DT_RETURN_IF_ERROR(Expect(FreeHugePages() == 4, "a buffer that is gone keeps pages"));
    DT_ASSIGN_OR_RETURN(const auto small, SymmetricBuffer::Create(kHugePageBytes - 1, "small"));
    DT_RETURN_IF_ERROR(Expect(AreaAt(small->data()).page_kib == 4, "a whole page for less"));
    return Expect(MappedPoolBytes() == 0, "pages that it does not map are counted");
  });
}

TEST_F(PoolOfHugePagesTest, ABufferThatItCannotHoldIsOfOrdinaryPages) {
  DT_RESERVE_OR_SKIP(2)
  RunAll(1, [](RankContext&) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto larger, SymmetricBuffer::Create(2 * kHugePageBytes + 1, "much"));
    DT_RETURN_IF_ERROR(Fill(*larger));  // No SIGBUS.
    DT_RETURN_IF_ERROR(Expect(AreaAt(larger->data()).page_kib == 4, "of huge pages"));
    DT_RETURN_IF_ERROR(Expect(FreeHugePages() == 2, "the attempt keeps pages"));
    DT_ASSIGN_OR_RETURN(const auto first, SymmetricBuffer::Create(2 * kHugePageBytes, "first"));
    DT_ASSIGN_OR_RETURN(const auto second, SymmetricBuffer::Create(kHugePageBytes, "second"));
    DT_RETURN_IF_ERROR(Fill(*first));
    DT_RETURN_IF_ERROR(Fill(*second));
    DT_RETURN_IF_ERROR(Expect(AreaAt(first->data()).page_kib == 2048, "the first is not"));
    return Expect(AreaAt(second->data()).page_kib == 4, "nothing was left for the second");
  });
}

// Pages beyond the pool would come from ordinary memory, for which CheckMemory was not called.
TEST_F(PoolOfHugePagesTest, DoesNotGrowForABuffer) {
  DT_RESERVE_OR_SKIP(1)
  constexpr const char* kBeyond = "/proc/sys/vm/nr_overcommit_hugepages";
  KernelSetting beyond(kBeyond, ReadText(kBeyond));
  ASSERT_TRUE(beyond.Set("8"));
  RunAll(1, [](RankContext&) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto larger, SymmetricBuffer::Create(2 * kHugePageBytes, "much"));
    DT_RETURN_IF_ERROR(Expect(AreaAt(larger->data()).page_kib == 4, "the pool grew"));
    DT_ASSIGN_OR_RETURN(const auto fits, SymmetricBuffer::Create(kHugePageBytes, "a page"));
    return Expect(AreaAt(fits->data()).page_kib == 2048, "its own page is not used");
  });
}

// Runs all-reduces over registered memory, in which each rank accesses the others' pages.
absl::Status ReduceIn(Group& group, const std::shared_ptr<SymmetricBuffer>& buffer) {
  DT_ASSIGN_OR_RETURN(const auto registration, group.Register(buffer));
  auto* const values = static_cast<float*>(buffer->data());
  const size_t count = buffer->bytes() / sizeof(float);
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < count; ++i) {
      values[i] = static_cast<float>(i % 1000) + static_cast<float>(group.rank());
    }
    DT_ASSIGN_OR_RETURN(const Work work,
                        group.AllReduce({values, count * sizeof(float)}, ReduceOp::kSum));
    DT_RETURN_IF_ERROR(work.Wait());
    for (size_t i = 0; i < count; ++i) {
      const float want = 2 * static_cast<float>(i % 1000) + 1;
      if (values[i] != want) {
        return absl::InternalError(
            absl::StrFormat("element %d is %g, want %g", i, values[i], want));
      }
    }
  }
  return group.Barrier(Deadline::Infinite());
}

TEST_F(PoolOfHugePagesTest, RanksReduceInEachOthersPages) {
  DT_RESERVE_OR_SKIP(6)
  RunAll(2, [](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto group, CreateHostGroup(context.store, context.group_options()));
    DT_ASSIGN_OR_RETURN(const auto buffer,
                        SymmetricBuffer::Create(2 * kHugePageBytes + 4100, "gradients"));
    DT_RETURN_IF_ERROR(
        Expect(AreaAt(buffer->data()).page_kib == 2048, "the buffer is of ordinary pages"));
    {
      DT_ASSIGN_OR_RETURN(const auto registration, group->Register(buffer));
      DT_RETURN_IF_ERROR(Expect(AreasOfPoolPages() == 2, "the peer's memory is mapped otherwise"));
    }
    return ReduceIn(*group, buffer);
  });
}

TEST_F(PoolOfHugePagesTest, RanksWithAndWithoutItsPagesReduceTogether) {
  DT_RESERVE_OR_SKIP(2)
  RunAll(2, [](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto group, CreateHostGroup(context.store, context.group_options()));
    const size_t bytes = kHugePageBytes + 4100;
    std::shared_ptr<SymmetricBuffer> buffer;
    for (int turn = 0; turn < 2; ++turn) {  // Rank 0 takes all pages of the pool.
      if (turn == context.rank) {
        DT_ASSIGN_OR_RETURN(buffer, SymmetricBuffer::Create(bytes, "gradients"));
      }
      DT_RETURN_IF_ERROR(group->Barrier(Deadline::Infinite()));
    }
    DT_RETURN_IF_ERROR(Expect(AreaAt(buffer->data()).page_kib == (context.rank == 0 ? 2048 : 4),
                              absl::StrFormat("rank %d has the other's pages", context.rank)));
    return ReduceIn(*group, buffer);
  });
}

// Number of times that the kernel had no huge page left for shared memory.
int64_t HugeFallbacks() { return NumberIn("/proc/vmstat", "thp_file_fallback "); }

TEST(TransparentHugePagesTest, ALargeBufferIsOfThemWhereTheKernelGrantsThem) {
  constexpr const char* kPolicy = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
  const std::string policy = ReadText(kPolicy);  // "always [advise] never".
  const size_t open = policy.find('[');
  const size_t close = policy.find(']', open);
  std::string chosen;
  if (close != std::string::npos) {
    chosen = policy.substr(open + 1, close - open - 1);
  }
  KernelSetting setting(kPolicy, chosen);
  if ((chosen.empty() || chosen == "never" || chosen == "deny") && !setting.Set("advise")) {
    GTEST_SKIP() << "NOT TESTED: this kernel grants no huge pages of shared memory (shmem_enabled: "
                 << (policy.empty() ? "not there" : policy) << ")";
  }
  constexpr size_t kBytes = 64 << 20;
  if (FreeHugePages() >= static_cast<int64_t>(kBytes / kHugePageBytes)) {
    GTEST_SKIP() << "NOT TESTED: the pool of huge pages is taken first";
  }
  const int64_t fallbacks = HugeFallbacks();
  auto buffer = SymmetricBuffer::Create(kBytes, "huge");
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  const int64_t kib = AreaAt((*buffer)->data()).huge_map_kib;
  if (kib == 0 && HugeFallbacks() != fallbacks) {
    GTEST_SKIP() << "NOT TESTED: this host had no huge page left";
  }
  EXPECT_GT(kib, 0);
  EXPECT_EQ(kib % 2048, 0);
}

}  // namespace
}  // namespace dtrain::comm::huge_pages_test
