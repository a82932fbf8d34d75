#include "kernels/cuda/cuda_group_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/numeric/prng.h"
#include "kernels/optimizer/grad_norm.h"

namespace dtrain::kernels::cuda_group_index_test {
namespace {

constexpr unsigned kThreads = 64;

// Does to `sums` what the kernel's blocks do in the levels from `stride` to half of `group`. Checks
// that at most one thread reads or writes a sum in a level, since the order would matter otherwise.
void Fold(std::vector<double>& sums, int64_t group, int64_t stride) {
  const auto count = static_cast<int64_t>(sums.size());
  for (int64_t block = 0; block * group < std::max(count, int64_t{1}); ++block) {
    const TreeSpan span = TreeSpanOf(block, group, count);
    for (int64_t half = stride; half < group; half *= 2) {
      std::vector<bool> touched(static_cast<size_t>(std::max(span.end - span.begin, int64_t{0})));
      for (unsigned thread = kThreads; thread-- > 0;) {  // The threads may run in any order.
        const TreeStride mine = TreeStrideOf(span, half, thread, kThreads);
        for (int64_t i = mine.first; i + half < span.end; i += mine.step) {
          for (const int64_t place : {i, i + half}) {
            ASSERT_GE(place, span.begin);
            ASSERT_FALSE(touched[static_cast<size_t>(place - span.begin)]) << place;
            touched[static_cast<size_t>(place - span.begin)] = true;
          }
          sums[static_cast<size_t>(i)] += sums[static_cast<size_t>(i + half)];
        }
      }
    }
  }
}

void ExpectTreeSum(int64_t count) {
  SplitMix64 random(static_cast<uint64_t>(count));
  std::vector<double> sums;
  for (int64_t i = 0; i < count; ++i) {
    sums.push_back(static_cast<double>(random.Below(1 << 20)) * 1e-3 + 1e-9);
  }
  std::vector<double> expected = sums;
  const double sum = TreeSum(expected.data(), count);
  int64_t stride = 1;
  if (TreeGroups(count) > 0) {
    ASSERT_GE(TreeGroups(count) * kTreeGroup, count);
    ASSERT_LT((TreeGroups(count) - 1) * kTreeGroup, count);
    Fold(sums, kTreeGroup, stride);
    stride = kTreeGroup;
  }
  ASSERT_GE(TreeWidth(count), count);
  Fold(sums, TreeWidth(count), stride);
  ASSERT_EQ(count > 0 ? sums[0] : 0, sum) << count;
}

TEST(CudaGroupIndex, TheTreeAddsEachSumOnceInTreeSumsOrder) {
  for (int64_t count = 0; count <= 6200; count += count < 300 || count > 4000 ? 1 : 17) {
    ExpectTreeSum(count);
  }
  for (const int64_t count : {65'535, 65'536, 65'537, 1'000'003}) {
    ExpectTreeSum(count);
  }
}

TEST(CudaGroupIndex, TreeSpansCutACountInGroups) {
  for (const int64_t count : {int64_t{2'147'483'649}, int64_t{4'294'967'311}}) {
    const int64_t groups = TreeGroups(count);
    for (int64_t block = 0; block < groups; block += groups / 1000 + 1) {
      const TreeSpan span = TreeSpanOf(block, kTreeGroup, count);
      ASSERT_EQ(span.begin, block * kTreeGroup);
      ASSERT_EQ(span.end, std::min(count, TreeSpanOf(block + 1, kTreeGroup, count).begin));
    }
    ASSERT_EQ(TreeSpanOf(groups - 1, kTreeGroup, count).end, count);
  }
}

// Every element of every block by one thread of the block's team, and one thread for its scale.
void ExpectTeams(int64_t n, int64_t block_size, int lanes) {
  const int64_t blocks = (n + block_size - 1) / block_size;
  std::vector<int> taken(static_cast<size_t>(n));
  std::vector<int> scales(static_cast<size_t>(blocks));
  for (int64_t thread = 0; thread < TeamThreads(blocks) + kTeam; ++thread) {
    const TeamSpan span = TeamSpanOf(thread, block_size, n, lanes);
    for (int64_t i = span.mine; i < span.end; i += kTeam * lanes) {
      ASSERT_EQ(i / block_size, span.block);
      for (int lane = 0; lane < lanes; ++lane) {
        ++taken[static_cast<size_t>(i + lane)];
      }
    }
    if (span.mine == span.first && span.first < n) {
      ++scales[static_cast<size_t>(span.block)];
    }
  }
  ASSERT_EQ(taken, std::vector<int>(taken.size(), 1)) << n << " in blocks of " << block_size;
  ASSERT_EQ(scales, std::vector<int>(scales.size(), 1)) << n << " in blocks of " << block_size;
}

TEST(CudaGroupIndex, TeamsTakeEachElementOfTheirBlockOnce) {
  for (const int64_t block_size : {1, 3, 16, 17, 64, 100, 255, 256, 2048}) {
    for (int64_t n = 0; n <= 2100; n += n < 300 ? 1 : 13) {
      ExpectTeams(n, block_size, 1);
    }
  }
  for (const int64_t block_size : {16, 48, 64, 256, 272, 2048}) {
    for (int64_t n = 0; n <= 6400; n += 16) {
      ExpectTeams(n, block_size, 16);
    }
  }
}

TEST(CudaGroupIndex, FarElementsHaveTheTeamOfTheirBlock) {
  for (const int64_t n : {int64_t{2'147'483'648}, int64_t{4'294'967'312}}) {
    for (const int64_t block_size : {64, 2048}) {
      for (int64_t i = n - 16; i >= 0; i -= (n / 16 / 1000 + 1) * 16) {
        const int64_t thread = i / block_size * kTeam + i % block_size / 16 % kTeam;
        const TeamSpan span = TeamSpanOf(thread, block_size, n, 16);
        ASSERT_EQ(span.block, i / block_size);
        ASSERT_LT(i, span.end);
        ASSERT_LE(span.end, n);
        ASSERT_EQ((i - span.mine) % (kTeam * 16), 0);
      }
    }
  }
}

TEST(CudaGroupIndex, CountBelowIsWhereAValueWouldStand) {
  SplitMix64 random(3);
  for (int64_t n = 0; n <= 200; ++n) {
    std::vector<int32_t> values;
    for (int64_t i = 0; i < n; ++i) {
      values.push_back(static_cast<int32_t>(random.Below(50)));
    }
    std::sort(values.begin(), values.end());
    for (int32_t value = 0; value <= 51; ++value) {
      const auto place = std::lower_bound(values.begin(), values.end(), value);
      ASSERT_EQ(CountBelow(values.data(), n, value), place - values.begin());
    }
  }
}

}  // namespace
}  // namespace dtrain::kernels::cuda_group_index_test
