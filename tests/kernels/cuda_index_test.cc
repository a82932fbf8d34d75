#include "kernels/cuda_index.h"

#include <gtest/gtest.h>

#include <vector>

namespace dtrain::kernels {
namespace {

TEST(CudaIndex, RandomSpansTakeEachElementOnceWithTheWordThatIsIts) {
  for (const int64_t first : {0, 1, 8, 63, 64, 77, 4096, 100'001}) {
    for (int64_t n = 0; n < 300; ++n) {
      std::vector<int> taken(static_cast<size_t>(n));
      for (int64_t thread = 0; thread < RandomThreads(n, first); ++thread) {
        const RandomSpan span = RandomSpanOf(thread, first);
        for (int k = 0; k < 4; ++k) {
          for (int64_t lane = 0; lane < 8; ++lane) {
            const int64_t i = span.Element(k, first) + lane;
            if (i < 0 || i >= n) {
              continue;
            }
            ++taken[static_cast<size_t>(i)];
            const int64_t place = first + i;  // In the layout; philox.h says whose bits it takes.
            ASSERT_EQ(place / kPhiloxRun, span.run);
            ASSERT_EQ(place % 16, span.lane + lane);
            ASSERT_EQ(place / 16 % 4, k);
          }
        }
      }
      ASSERT_EQ(taken, std::vector<int>(static_cast<size_t>(n), 1)) << n << " from " << first;
    }
  }
}

TEST(CudaIndex, HalfSpansTakeEachElementOnceWithTheHalfThatIsIts) {
  for (int64_t n = 0; n < 600; ++n) {
    std::vector<int> taken(static_cast<size_t>(n));
    for (int64_t thread = 0; thread < HalfSpanThreads(n); ++thread) {
      const HalfSpan span = HalfSpanOf(thread);
      for (int k = 0; k < 4; ++k) {
        ASSERT_EQ(span.Element(k) % 8, 0);
        for (int64_t lane = 0; lane < 8; ++lane) {
          const int64_t i = span.Element(k) + lane;
          if (i < n) {
            ++taken[static_cast<size_t>(i)];
            ASSERT_EQ(i / kPhiloxHalfRun, span.run);
            ASSERT_EQ(i % 32 / 2, span.lane + lane / 2);
            ASSERT_EQ(i / 32 % 4, k);
          }
        }
      }
    }
    ASSERT_EQ(taken, std::vector<int>(static_cast<size_t>(n), 1)) << n;
  }
}

TEST(CudaIndex, EightNeighboursAreAlignedWhereTheBufferIs) {
  for (const int64_t first : {0, 8, 64, 72}) {
    for (int64_t thread = 0; thread < 20; ++thread) {
      for (int k = 0; k < 4; ++k) {
        EXPECT_EQ(RandomSpanOf(thread, first).Element(k, first) % 8, 0);
      }
    }
  }
}

TEST(CudaIndex, TilesReadAndWriteEachElementOnce) {
  for (const int64_t rows : {1, 15, 16, 63, 64, 65, 130, 257}) {
    for (const int64_t columns : {1, 17, 64, 100, 129}) {
      std::vector<int> read(static_cast<size_t>(rows * columns));
      std::vector<int> written(read.size());
      for (int64_t down = 0; down < TransposeTiles(rows); ++down) {
        for (int64_t across = 0; across < TransposeTiles(columns); ++across) {
          for (int thread = 0; thread < 256; ++thread) {
            const TileSpan source = TileSource(down, across, thread);
            const TileSpan result = TileResult(down, across, thread);
            for (int lane = 0; lane < 16; ++lane) {
              if (source.row < rows && source.column + lane < columns) {
                ++read[static_cast<size_t>(source.row * columns + source.column + lane)];
              }
              if (result.row < columns && result.column + lane < rows) {
                ++written[static_cast<size_t>(result.row * rows + result.column + lane)];
                // What it writes was read into the same tile.
                ASSERT_EQ((result.column + lane) / kTransposeTile, down);
                ASSERT_EQ(result.row / kTransposeTile, across);
              }
            }
          }
        }
      }
      const std::vector<int> once(read.size(), 1);
      ASSERT_EQ(read, once) << rows << " x " << columns;
      ASSERT_EQ(written, once) << rows << " x " << columns;
    }
  }
}

}  // namespace
}  // namespace dtrain::kernels
