#include "kernels/cuda/cuda_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/cuda/cuda_row_index.h"

namespace dtrain::kernels::cuda_index_test {
namespace {

constexpr int64_t kSizesTo = 50'000;
// Larger sizes are near powers of two and near the limit of 32 bits.
const std::vector<int64_t> kLargeSizes = {65'535,        65'537,        131'071,
                                          1'000'003,     16'777'213,    2'147'483'647,
                                          2'147'483'649, 4'294'967'295, 4'294'967'311};

// The error in the span of `thread`, or "". It is no std::string, because there are 160 million
// spans.
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
// none. For a large n only some threads are tried.
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

// A team takes its row's neighbours in turn, as a block does; every thread has a row, and the rows
// of all blocks are all rows.
void ExpectWholePlan(int64_t hidden, bool aligned) {
  const RowPlan plan = RowPlanOf(hidden, aligned);
  const unsigned threads = plan.team > 0 ? static_cast<unsigned>(plan.team) : plan.threads;
  ASSERT_EQ(plan.rows() * threads, plan.threads) << hidden;
  ASSERT_EQ(hidden % plan.lanes, 0) << "a thread's neighbours are all there or none";
  if (plan.team == 0) {
    const RowWay way = RowWayOf(hidden, aligned);
    ASSERT_TRUE(plan.lanes == way.lanes && plan.steps == way.steps && plan.threads == way.threads);
  } else {
    ASSERT_EQ(32 % plan.team, 0) << "a team is within a warp";
    ASSERT_GE(RowElement(plan.steps, 0, threads, plan.lanes), hidden) << "steps cover the row";
  }
  for (const int64_t tokens :
       {int64_t{1}, int64_t{15}, int64_t{16}, int64_t{17}, int64_t{99'999}}) {
    const int64_t blocks = RowBlocks(plan, tokens);
    ASSERT_TRUE(blocks * plan.rows() >= tokens && (blocks - 1) * plan.rows() < tokens);
    const int64_t chunks = RowBlocksOfBackward(plan, tokens, hidden);
    ASSERT_TRUE(chunks > 0 && chunks <= blocks && chunks <= RowChunksCuda(tokens, hidden));
  }
}

TEST(CudaIndex, TeamsAndBlocksHaveEveryRowOfANorm) {
  for (int64_t hidden = 1; hidden <= kSizesTo; ++hidden) {
    ExpectWholePlan(hidden, false);
    ExpectWholePlan(hidden, true);
  }
  EXPECT_EQ(RowPlanOf(128, true).rows(), 16U) << "of a head's width";
  EXPECT_EQ(RowPlanOf(768, true).rows(), 8U);
  EXPECT_EQ(RowPlanOf(4096, true).rows(), 1U);
}

// Row strides of a whole block leave no element of a row and take none twice.
TEST(CudaIndex, RowStridesTakeEachElementOnce) {
  for (const int lanes : {1, kWidth, 16}) {
    for (const unsigned threads : {16U, 32U, 128U, 256U, 512U}) {
      for (int64_t n = 0; n <= 3000; n += lanes) {
        std::vector<int> taken(static_cast<size_t>(n));
        for (unsigned thread = 0; thread < threads; ++thread) {
          const RowStride mine = RowStrideOf(thread, threads, lanes);
          for (int64_t i = mine.first; i < n; i += mine.step) {
            for (int lane = 0; lane < lanes; ++lane) {
              ++taken[static_cast<size_t>(i + lane)];
            }
          }
        }
        ASSERT_EQ(taken, std::vector<int>(static_cast<size_t>(n), 1))
            << n << " over " << threads << " threads";
      }
    }
  }
}

// Less than a step lies around a row's words at each side, wherever the row begins.
TEST(CudaIndex, WordsOfARowBeginAtSixteenBytes) {
  for (const size_t size : {2UL, 4UL}) {
    for (int64_t n = 0; n <= 70; ++n) {
      for (uint64_t address = 0; address < 64; address += size) {
        const RowWords words = RowWordsOf(address, size, n, kWidth);
        ASSERT_TRUE(0 <= words.begin && words.begin <= words.end && words.end <= n) << n;
        ASSERT_EQ((words.end - words.begin) % kWidth, 0) << n;
        ASSERT_LT(words.begin, kWidth) << n;
        ASSERT_LT(n - words.end, kWidth) << n;
        if (words.begin < n) {
          ASSERT_EQ((address + static_cast<uint64_t>(words.begin) * size) % 16, 0U) << n;
        }
        const RowWords ones = RowWordsOf(address, size, n, 1);
        ASSERT_TRUE(ones.begin == 0 && ones.end == n) << n;
      }
    }
  }
}

// Threads in turn begin where the one before them ends, and no block is idle.
void ExpectWholeGrid(int64_t n, unsigned threads, int lanes) {
  const int64_t blocks = GridBlocks(n, threads, lanes);
  ASSERT_GE(blocks * threads * lanes, n);
  ASSERT_LT((blocks - 1) * threads * lanes, std::max(n, int64_t{1})) << "an idle block";
  const int64_t step = n <= kSizesTo ? 1 : blocks / 1000 + 1;
  for (int64_t block = 0; block < blocks; block += step) {
    const int64_t first = GridElement(block, 0, threads, lanes);
    ASSERT_EQ(first, block * threads * lanes);
    ASSERT_EQ(GridElement(block, threads - 1, threads, lanes) + lanes,
              GridElement(block + 1, 0, threads, lanes));
  }
}

TEST(CudaIndex, GridsTakeEachElementOnce) {
  for (const unsigned threads : {32U, 128U, 256U}) {
    for (const int lanes : {1, kWidth, 16}) {
      for (int64_t n = 0; n <= kSizesTo; n += lanes) {
        ExpectWholeGrid(n, threads, lanes);
      }
      for (const int64_t n : kLargeSizes) {
        ExpectWholeGrid(n / lanes * lanes, threads, lanes);
      }
      for (unsigned thread = 0; thread + 1 < threads; ++thread) {
        for (const int64_t block : {int64_t{0}, int64_t{1}, int64_t{2'147'483'646}}) {
          ASSERT_EQ(GridElement(block, thread, threads, lanes) + lanes,
                    GridElement(block, thread + 1, threads, lanes));
        }
      }
    }
  }
}

// The rows that bench/cuda_in_flight.py estimates, which has these numbers as PLANS.
TEST(CudaIndex, RowsOfTheBenchmarksWidthsHaveThePlansThatItPrints) {
  struct Expected {
    int64_t hidden, tokens, chunks;
    RowPlan plan;
    unsigned rows;
  };
  for (const auto& [hidden, tokens, chunks, expected, rows] :
       {Expected{128, 16 * 8192, 528, {8, 1, 256, 16}, 16},
        Expected{768, 8192, 528, {8, 3, 256, 32}, 8},
        Expected{4096, 8192, 264, {8, 2, 256, 0}, 1}}) {
    SCOPED_TRACE(hidden);
    const RowPlan plan = RowPlanOf(hidden, /*aligned=*/true);
    EXPECT_EQ(plan.lanes, expected.lanes);
    EXPECT_EQ(plan.steps, expected.steps);
    EXPECT_EQ(plan.threads, expected.threads);
    EXPECT_EQ(plan.team, expected.team);
    EXPECT_EQ(plan.rows(), rows);
    EXPECT_EQ(RowChunksCuda(tokens, hidden), chunks);
  }
  // Embeddings, rotary positions and rows of FP8 at these widths.
  EXPECT_EQ(RowBlockOf(128 / kWidth, 128).across, 16U);
  EXPECT_EQ(RowBlockOf(128 / kWidth, 128).rows, 8U);
  EXPECT_EQ(RowBlockOf(768 / kWidth, 128).across, 96U);
  EXPECT_EQ(RowBlockOf(768 / kWidth, 128).rows, 1U);
  EXPECT_EQ(RowBlockOf(4096 / kWidth, 128).across, 128U);
  EXPECT_EQ(RowTeamOf(128 / 16), 8);
  EXPECT_EQ(RowTeamOf(768 / 16), 32);
  EXPECT_EQ(RowTeamOf(4096 / 16), 0);
}

// Rows of `items` pieces: each piece of each row once, by blocks that have few threads without one.
void ExpectWholeRowBlocks(int64_t items, int64_t rows, unsigned threads) {
  const RowBlock block = RowBlockOf(items, threads);
  ASSERT_GT(block.across, 0U);
  ASSERT_GT(block.rows, 0U);
  ASSERT_LE(block.across * block.rows, threads);
  ASSERT_GT(block.across * block.rows, threads / 2) << items << " leave a block half empty";
  const int64_t across = GridBlocks(items, block.across, 1);
  ASSERT_LT(across * block.across - items, across) << "a block has a thread without a piece";
  std::vector<int> taken(static_cast<size_t>(rows * items));
  for (int64_t down = 0; down < GridBlocks(rows, block.rows, 1); ++down) {
    for (unsigned y = 0; y < block.rows; ++y) {
      const int64_t row = GridElement(down, y, block.rows, 1);
      for (int64_t item = 0; row < rows && item < across * block.across; ++item) {
        const auto x = static_cast<unsigned>(item % block.across);
        ASSERT_EQ(GridElement(item / block.across, x, block.across, 1), item);
        if (item < items) {
          ++taken[static_cast<size_t>(row * items + item)];
        }
      }
    }
  }
  ASSERT_EQ(taken, std::vector<int>(static_cast<size_t>(rows * items), 1)) << items;
}

TEST(CudaIndex, BlocksOverRowsTakeEachPieceOnceAndLeaveFewThreadsIdle) {
  for (int64_t items = 1; items <= 700; ++items) {
    for (const int64_t rows : {1, 7, 130}) {
      ExpectWholeRowBlocks(items, rows, 128);
    }
  }
}

TEST(CudaIndex, ATeamOfARowHasFewWordsAThread) {
  for (int64_t words = 1; words <= 4096; ++words) {
    const int team = RowTeamOf(words);
    ASSERT_TRUE(team == 8 || team == 32 || team == 0) << words;
    const int64_t threads = team > 0 ? team : 256;
    ASSERT_LE((words + threads - 1) / threads, words <= 1024 ? 4 : 16) << words;
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
    for (int64_t n = 0; n < 2500; ++n) {
      std::vector<int> taken(static_cast<size_t>(n));
      for (int64_t thread = 0; thread < RandomThreads(n, first); ++thread) {
        const RandomSpan span = RandomSpanOf(thread, first);
        int64_t there = 0;
        for (int k = 0; k < 4; ++k) {
          for (int64_t lane = 0; lane < 8; ++lane) {
            const int64_t i = span.Element(k, first) + lane;
            if (i < 0 || i >= n) {
              continue;
            }
            ++there;
            ++taken[static_cast<size_t>(i)];
            const int64_t place =
                first + i;  // Its index in the layout; philox.h says which bits it takes.
            ASSERT_EQ(place / kPhiloxRun, span.run);
            ASSERT_EQ(place % 16, span.lane + lane);
            ASSERT_EQ(place / 16 % 4, k);
          }
        }
        ASSERT_EQ(span.whole(n, first), there == 32) << thread << " of " << n << " from " << first;
      }
      ASSERT_EQ(taken, std::vector<int>(static_cast<size_t>(n), 1)) << n << " from " << first;
    }
  }
}

// An element tells the thread, so no two threads have it.
TEST(CudaIndex, FarElementsHaveTheRandomSpanThatTheirPlaceTells) {
  for (const int64_t first : {int64_t{0}, int64_t{77}, int64_t{4'294'967'299}}) {
    for (const int64_t n : kLargeSizes) {
      for (int64_t i = n - 1; i >= 0; i -= n / 1000 + 1) {
        const int64_t place = first + i;
        const int64_t thread = 2 * (place / kPhiloxRun - first / kPhiloxRun) + place % 16 / 8;
        ASSERT_LT(thread, RandomThreads(n, first)) << i << " of " << n;
        const RandomSpan span = RandomSpanOf(thread, first);
        ASSERT_EQ(span.Element(static_cast<int>(place / 16 % 4), first), i - place % 8);
      }
    }
  }
}

TEST(CudaIndex, HalfSpansTakeEachElementOnceWithTheHalfThatIsIts) {
  for (int64_t n = 0; n < 5000; ++n) {
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

TEST(CudaIndex, FarElementsHaveTheHalfSpanThatTheirPlaceTells) {
  for (const int64_t n : kLargeSizes) {
    for (int64_t i = n - 1; i >= 0; i -= n / 1000 + 1) {
      const int64_t thread = 4 * (i / kPhiloxHalfRun) + i % 32 / 8;
      ASSERT_LT(thread, HalfSpanThreads(n)) << i << " of " << n;
      ASSERT_EQ(HalfSpanOf(thread).Element(static_cast<int>(i / 32 % 4)), i - i % 8);
    }
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

// How often [rows, columns] is read and [columns, rows] written by all tiles; whether what a tile
// writes was read into the same one.
struct TileCounts {
  std::vector<int> read;
  std::vector<int> written;
  bool within = true;

  void Add(int64_t rows, int64_t columns, int64_t down, int64_t across, int thread) {
    const TileSpan source = TileSource(down, across, thread);
    const TileSpan result = TileResult(down, across, thread);
    for (int64_t lane = 0; lane < 16; ++lane) {
      if (source.row < rows && source.column + lane < columns) {
        ++read[static_cast<size_t>(source.row * columns + source.column + lane)];
      }
      if (result.row < columns && result.column + lane < rows) {
        ++written[static_cast<size_t>(result.row * rows + result.column + lane)];
        within = within && (result.column + lane) / kTransposeTile == down &&
                 result.row / kTransposeTile == across;
      }
    }
  }
};

void ExpectEachTransposedOnce(int64_t rows, int64_t columns) {
  const auto size = static_cast<size_t>(rows * columns);
  TileCounts counts{std::vector<int>(size), std::vector<int>(size)};
  for (int64_t down = 0; down < TransposeTiles(rows); ++down) {
    for (int64_t across = 0; across < TransposeTiles(columns); ++across) {
      for (int thread = 0; thread < 256; ++thread) {
        counts.Add(rows, columns, down, across, thread);
      }
    }
  }
  const std::vector<int> once(size, 1);
  ASSERT_EQ(counts.read, once) << rows << " x " << columns;
  ASSERT_EQ(counts.written, once) << rows << " x " << columns;
  ASSERT_TRUE(counts.within) << rows << " x " << columns;
}

TEST(CudaIndex, TilesReadAndWriteEachElementOnce) {
  for (int64_t rows = 0; rows <= 132; ++rows) {
    for (int64_t columns = 0; columns <= 132; ++columns) {
      ExpectEachTransposedOnce(rows, columns);
    }
  }
  const std::vector<int64_t> about_tiles = {1, 63, 64, 65, 127, 128, 129, 191, 192, 193, 257, 500};
  for (const int64_t rows : about_tiles) {
    for (const int64_t columns : about_tiles) {
      ExpectEachTransposedOnce(rows, columns);
    }
  }
}

// For tiles with large numbers, checks the first and the last of their rows and columns.
TEST(CudaIndex, FarTilesStandWhereTheirNumberSays) {
  for (const int64_t tile :
       {int64_t{0}, int64_t{65'535}, int64_t{33'554'432}, int64_t{67'108'865}}) {
    for (const int64_t other : {int64_t{0}, int64_t{4'194'305}}) {
      const int64_t at = tile * kTransposeTile;
      const int64_t beside = other * kTransposeTile;
      EXPECT_EQ(TileSource(tile, other, 0).row, at);
      EXPECT_EQ(TileSource(tile, other, 0).column, beside);
      EXPECT_EQ(TileSource(tile, other, 255).row, at + kTransposeTile - 1);
      EXPECT_EQ(TileSource(tile, other, 255).column, beside + kTransposeTile - 16);
      EXPECT_EQ(TileResult(tile, other, 255).row, beside + kTransposeTile - 1);
      EXPECT_EQ(TileResult(tile, other, 255).column, at + kTransposeTile - 16);
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
}  // namespace dtrain::kernels::cuda_index_test
