// Pages of constants that no load has mapped are mapped.
#include "base/system/constant_pages.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

#include "base/unique_fd.h"

namespace dtrain::constant_pages_test {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kPages = 64;
alignas(kPage) constexpr char kConstants[kPages * kPage] = {1};

// How many of the pages are in this process's page table, as the kernel says.
size_t PagesMapped() {
  const UniqueFd pagemap(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  constexpr uint64_t kIsPresent = uint64_t{1} << 63;
  const size_t first = reinterpret_cast<uintptr_t>(&kConstants[0]) / kPage;
  size_t mapped = 0;
  for (size_t page = 0; page < kPages; ++page) {
    uint64_t entry = 0;
    const auto offset = static_cast<off_t>((first + page) * sizeof(entry));
    if (pread(pagemap.get(), &entry, sizeof(entry), offset) != sizeof(entry)) {
      ADD_FAILURE() << "/proc/self/pagemap cannot be read";
      return 0;
    }
    mapped += (entry & kIsPresent) != 0 ? 1 : 0;
  }
  return mapped;
}

TEST(ConstantPages, AreMappedWithoutALoadThatFaults) {
  if (sysconf(_SC_PAGESIZE) != kPage) {
    GTEST_SKIP() << "LOUD SKIP: pages are longer than 4 KiB here";
  }
  void* const begin = const_cast<char*>(&kConstants[0]);
  ASSERT_EQ(madvise(begin, sizeof(kConstants), MADV_DONTNEED), 0);
  ASSERT_EQ(PagesMapped(), 0U);

  EXPECT_GE(MapConstantPages(), static_cast<int64_t>(sizeof(kConstants)));

  EXPECT_EQ(PagesMapped(), kPages);
}

}  // namespace
}  // namespace dtrain::constant_pages_test
