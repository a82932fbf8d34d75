#include "kernels/cuda_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace dtrain::kernels {
namespace {

constexpr int64_t kSizesTo = 50'000;
// Beyond, about powers of two and where 32 bits end.
const std::vector<int64_t> kLargeSizes = {65'535,        65'537,        131'071,
                                          1'000'003,     16'777'213,    2'147'483'647,
                                          2'147'483'649, 4'294'967'295, 4'294'967'311};

// What is not right for `thread`; "" where all is. A string's cost for each of 160 million is not.
const char* WrongSpan(int64_t thread, int64_t n) {
  const ElementSpan span = ElementSpanOf(thread, n);
  if (span.first != thread * kWidth || span.first % kWidth != 0) {
    return "spans are not side by side, 16 bytes apart";
  }
  if (span.whole() != (span.first + kWidth <= n) || span.end > n) {
    return "a span goes beyond the end";
  }
  const int64_t next = ElementSpanOf(thread + 1, n).first;
  return (span.first < n ? span.end == (next < n ? next : n) : span.end <= span.first)
             ? ""
             : "a span does not end where the next begins";
}

// Each span begins where the one before it ended, and the last ends at n; threads behind it have
// none. Of a large n some threads.
void ExpectEverythingOnce(int64_t n) {
  const int64_t threads = ElementBlocks(n) * kElementThreads;
  const int64_t step = n <= kSizesTo ? 1 : threads / 1000 + 1;
  for (int64_t thread = 0; thread < threads; thread += step) {
    const char* const wrong = WrongSpan(thread, n);
    if (*wrong != '\0') {
      FAIL() << wrong << ": thread " << thread << " of " << n;
    }
  }
  ASSERT_GE(threads * kWidth, n);
  ASSERT_LT((threads - kElementThreads) * kWidth, std::max(n, int64_t{1})) << "an idle block";
}

TEST(CudaIndex, ElementSpansTakeEachElementOnce) {
  for (int64_t n = 0; n <= kSizesTo; ++n) {
    ExpectEverythingOnce(n);
  }
  for (const int64_t n : kLargeSizes) {
    ExpectEverythingOnce(n);
  }
}

// Steps and threads in turn take neighbours, from 0 to beyond the width.
void ExpectWholeRow(int64_t hidden, bool aligned) {
  const RowWay way = RowWayOf(hidden, aligned);
  ASSERT_TRUE(way.threads % 32 == 0 && way.threads >= 32 && way.threads <= kRowThreadsMax);
  ASSERT_EQ(way.lanes, aligned && hidden % kWidth == 0 ? kWidth : 1) << hidden;
  ASSERT_EQ(hidden % way.lanes, 0) << "a thread's neighbours are all there or none";
  const int64_t a_step = RowElement(1, 0, way.threads, way.lanes);
  ASSERT_EQ(a_step, int64_t{way.threads} * way.lanes);
  const int64_t steps = (hidden + a_step - 1) / a_step;
  ASSERT_TRUE(way.steps == 0 || way.steps == steps) << hidden;
  for (int64_t k = 0; k < steps; ++k) {
    ASSERT_EQ(RowElement(k, 0, way.threads, way.lanes), k * a_step) << hidden;
    ASSERT_EQ(RowElement(k, way.threads - 1, way.threads, way.lanes) + way.lanes, (k + 1) * a_step);
  }
}

TEST(CudaIndex, RowsAreWalkedOnceInEveryWidth) {
  for (int64_t hidden = 1; hidden <= kSizesTo; ++hidden) {
    ExpectWholeRow(hidden, false);
    ExpectWholeRow(hidden, true);
  }
  for (const int64_t hidden : {int64_t{65'536}, int64_t{100'003}, int64_t{1'048'576}}) {
    ExpectWholeRow(hidden, true);
  }
  for (const int lanes : {1, kWidth}) {  // Between the ends of a step: neighbours.
    for (unsigned threads = 32; threads <= kRowThreadsMax; threads += 32) {
      for (unsigned thread = 0; thread < threads; ++thread) {
        ASSERT_EQ(RowElement(3, thread, threads, lanes),
                  RowElement(3, 0, threads, lanes) + int64_t{thread} * lanes);
      }
    }
  }
}

TEST(CudaIndex, NormBlocksCutARangeAtTheLayoutsOffsets) {
  for (const int64_t offset : {0, 1, 4095, 4096, 4097, 123'456'789}) {
    for (int64_t n = 1; n <= kSizesTo; ++n) {
      int64_t next = 0;
      for (int64_t block = 0; block < NormBlocks(offset, n); ++block) {
        const NormSpan span = NormSpanOf(block, offset, n);
        ASSERT_EQ(span.from, next) << n << " at " << offset;
        ASSERT_TRUE(span.whole() <= span.to && span.to - span.whole() < kWidth);
        ASSERT_EQ((span.whole() - span.from) % kWidth, 0);
        ASSERT_EQ((offset + span.from) / kNormBlock, (offset + span.to - 1) / kNormBlock);
        next = span.to;
      }
      ASSERT_EQ(next, n) << " at " << offset;
    }
  }
}

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

TEST(CudaIndex, TilesDownAreNumberedOnceWithinWhatAGridTakes) {
  for (const int64_t tiles : {1, 32767, 32768, 32769, 65536, 65537, 1000001}) {
    const TileGrid grid = GridOfTiles(tiles);
    ASSERT_LE(grid.y, 65535);
    ASSERT_LE(grid.z, 65535);
    int64_t next = 0;
    for (int64_t z = 0; z < grid.z; ++z) {
      for (int64_t y = 0; y < grid.y; ++y) {
        ASSERT_EQ(TileDown(y, z, grid.y), next++);
      }
    }
    ASSERT_GE(next, tiles);
    ASSERT_LT(next - tiles, grid.y);
  }
}

}  // namespace
}  // namespace dtrain::kernels
