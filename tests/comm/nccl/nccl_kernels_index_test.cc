#include "comm/nccl/plugin/nccl_kernels_index.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace dtrain::comm::nccl_kernels_index_test {
namespace {

constexpr int kWidth = 8;

// Counts the elements of all threads of the grid.
void ExpectEachOnce(size_t count, int lanes, unsigned blocks) {
  std::vector<int> taken(count);
  for (unsigned block = 0; block < blocks; ++block) {
    for (unsigned thread = 0; thread < kNcclKernelThreads; ++thread) {
      const NcclKernelSpan span = NcclKernelSpanOf(count, lanes, block, thread, blocks);
      ASSERT_EQ(span.first % static_cast<size_t>(lanes), 0U) << "not aligned";
      for (size_t i = span.first; i < span.whole; i += span.step) {
        for (size_t lane = 0; lane < static_cast<size_t>(lanes); ++lane) {
          ++taken[i + lane];
        }
      }
      for (size_t i = span.rest; i < count; i += span.rest_step) {
        ++taken[i];
      }
    }
  }
  ASSERT_EQ(taken, std::vector<int>(count, 1)) << count << " in " << blocks << " blocks";
}

TEST(NcclKernelsIndex, AGridTakesEachElementOnce) {
  for (const int lanes : {1, kWidth}) {
    for (size_t count = 0; count <= 20'000; count += count < 5000 ? 1 : 37) {
      const unsigned blocks = NcclKernelBlocks(count, lanes);
      ASSERT_EQ(blocks == 0, count == 0);
      ExpectEachOnce(count, lanes, blocks);
    }
  }
}

// The sums' grid does not grow with the count, and the largest grid takes several steps.
TEST(NcclKernelsIndex, AGridOfAnySizeTakesEachElementOnce) {
  for (const int lanes : {1, kWidth}) {
    for (const size_t count : {0, 1, 7, 8, 9, 2047, 2049, 65'535, 1'000'003}) {
      ExpectEachOnce(count, lanes, 256);
    }
  }
  ExpectEachOnce(kNcclBlocksMax * kNcclKernelThreads * kWidth * 2 + 13, kWidth, kNcclBlocksMax);
  EXPECT_EQ(NcclKernelBlocks(size_t{1} << 40, kWidth), kNcclBlocksMax);
}

// The element gives its thread, so that no two threads have it.
TEST(NcclKernelsIndex, FarElementsHaveTheThreadThatTheirPlaceTells) {
  for (const size_t count : {size_t{2'147'483'649}, size_t{4'294'967'311}}) {
    for (const int lanes : {1, kWidth}) {
      const auto width = static_cast<size_t>(lanes);
      const unsigned blocks = NcclKernelBlocks(count, lanes);
      const size_t threads = size_t{blocks} * kNcclKernelThreads;
      const auto span_of = [&](size_t thread) {
        return NcclKernelSpanOf(count, lanes, static_cast<unsigned>(thread / kNcclKernelThreads),
                                static_cast<unsigned>(thread % kNcclKernelThreads), blocks);
      };
      const size_t whole = count / width * width;
      for (size_t i = 0; i < whole; i += count / 1000) {
        const NcclKernelSpan span = span_of(i / width % threads);
        ASSERT_EQ(span.whole, whole);
        ASSERT_EQ((i - i % width - span.first) % span.step, 0U) << i << " of " << count;
      }
      for (size_t i = whole; i < count; ++i) {
        ASSERT_EQ(span_of(i - whole).rest, i);
      }
    }
  }
}

// More squares than a float holds the sum of: 2^113 each.
TEST(LongSquareSum, IsAsExactForManyElementsAsForFew) {
  constexpr int64_t kSteps = 20'000;
  const std::vector<float> x(kWidth, 0x1.8p56F);
  const double square = double{x[0]} * double{x[0]};
  LongSquareSum wide = {};
  for (int64_t step = 1; step <= kSteps; ++step) {
    wide.Add<kWidth>(x.data());
    const double expected = square * static_cast<double>(step * kWidth);
    ASSERT_NEAR(wide.sum(), expected, 1e-12 * expected) << step;
  }
  wide.Add<1>(x.data());
  const double expected = square * static_cast<double>(kSteps * kWidth + 1);
  EXPECT_NEAR(wide.sum(), expected, 1e-12 * expected);
}

}  // namespace
}  // namespace dtrain::comm::nccl_kernels_index_test
