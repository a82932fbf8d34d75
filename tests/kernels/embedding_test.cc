#include "kernels/layers/embedding.h"

#include "kernels/write_mode.h"
#include "tests/kernels/kernel_testing.h"

namespace dtrain::kernels::embedding_test {
namespace {

using testing::Buffer;
using testing::EachVariant;

template <class T>
struct Problem {
  Problem(int64_t token_count, int64_t rows, int64_t columns, int64_t shift = 0)
      : tokens(token_count),
        vocab(rows),
        width(columns),
        dy(token_count * columns, shift),
        dweight(rows * columns, shift),
        order(static_cast<size_t>(token_count)),
        starts(static_cast<size_t>(rows + 2), -5) {
    dy.Fill(1);
    SplitMix64 random(2);
    for (int64_t i = 0; i < tokens; ++i) {
      // Ids are distributed like words: low ones are frequent, and many never come.
      const double u = random.Uniform();
      ids.push_back(static_cast<int64_t>(u * u * u * static_cast<double>(rows)));
    }
  }
  void Run(ParallelFor parallel_for, int64_t padding_index = -1) {
    EmbeddingBackwardCpu(EmbeddingBackwardArgs<T>{.tokens = tokens,
                                                  .vocab = vocab,
                                                  .width = width,
                                                  .padding_index = padding_index,
                                                  .ids = ids.data(),
                                                  .dy = dy.get(),
                                                  .dweight = dweight.get(),
                                                  .order = order.data(),
                                                  .starts = starts.data()},
                         parallel_for);
  }
  // fp32 sums in the order of the tokens, rounded once: the bits that the header promises.
  void ExpectOrderedSums(int64_t padding_index = -1) const {
    std::vector<float> sums(static_cast<size_t>(vocab * width));
    std::vector<bool> seen(static_cast<size_t>(vocab));
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t v = ids[static_cast<size_t>(t)];
      if (v == padding_index) {
        continue;
      }
      for (int64_t i = 0; i < width; ++i) {
        float& sum = sums[static_cast<size_t>(v * width + i)];
        sum = seen[static_cast<size_t>(v)] ? sum + dy(t * width + i) : dy(t * width + i);
      }
      seen[static_cast<size_t>(v)] = true;
    }
    for (int64_t i = 0; i < vocab * width; ++i) {
      T expected;
      testing::Assign(expected, sums[static_cast<size_t>(i)]);
      ASSERT_EQ(dweight(i), testing::ToF(expected)) << "row " << i / width;
    }
    ASSERT_TRUE(dweight.GuardIntact());
  }
  int64_t tokens, vocab, width;
  Buffer<T> dy, dweight;
  std::vector<int64_t> ids, order, starts;
};

template <class T>
class Embedding : public ::testing::Test {};
using Types = ::testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(Embedding, Types);

TYPED_TEST(Embedding, AddsEachRowsTokensInTheirOrder) {
  EachVariant([](SimdLevel) {
    for (const int64_t width : {1, 7, 16, 17, 64, 65, 100, 256}) {
      for (const int64_t tokens : {0, 1, 2, 50, 333}) {
        Problem<TypeParam> p(tokens, 41, width, tokens % 3);
        p.Run(SerialFor);
        p.ExpectOrderedSums();
      }
    }
  });
}

TYPED_TEST(Embedding, GivesTheSameBitsInEverySplit) {
  Problem<TypeParam> one(5000, 3000, 96);
  one.Run(SerialFor);
  one.ExpectOrderedSums();
  EachVariant([&](SimdLevel) {
    for (const testing::Split& split : testing::Splits()) {
      Problem<TypeParam> other(5000, 3000, 96);
      other.Run(split);
      ASSERT_TRUE(other.dweight.SameBits(one.dweight)) << split.threads << " threads";
    }
  });
}

TYPED_TEST(Embedding, WritesTheSamePastTheCaches) {
  for (const int64_t width : {1024, 1017}) {
    Problem<TypeParam> p(3000, 9000, width, 1);  // A table of 18 MB and more.
    p.Run(testing::Splits()[2], 3);
    p.ExpectOrderedSums(3);
  }
}

// Rows wider than the loop's blocks of columns, with several tokens each, in the caches and past
// them.
TYPED_TEST(Embedding, AddsWideRowsBlockByBlock) {
  EachVariant([](SimdLevel) {
    for (const int64_t width : {2049, 4100}) {
      for (const int64_t shift : {0, 1}) {
        Problem<TypeParam> cached(300, 40, width, shift);
        cached.Run(SerialFor, 3);
        cached.ExpectOrderedSums(3);
      }
    }
  });
  for (const int64_t width : {2049, 4100}) {
    const int64_t rows = kStreamBytesMin / (width * static_cast<int64_t>(sizeof(TypeParam))) + 1;
    Problem<TypeParam> streamed(rows, rows, width, 1);
    streamed.Run(testing::Splits()[2], 3);
    streamed.ExpectOrderedSums(3);
  }
}

TYPED_TEST(Embedding, LeavesThePaddingRowZero) {
  Problem<TypeParam> p(200, 10, 24);
  p.Run(SerialFor, 0);
  p.ExpectOrderedSums(0);
}

TEST(EmbeddingSort, IsStableAndCoversEveryToken) {
  const std::vector<int64_t> ids = {4, 0, 4, 2, 0, 4};
  std::vector<int64_t> order(6);
  std::vector<int64_t> starts(7);
  SortTokensById(6, 5, ids.data(), order.data(), starts.data());
  EXPECT_EQ(order, (std::vector<int64_t>{1, 4, 3, 0, 2, 5}));
  starts.pop_back();
  EXPECT_EQ(starts, (std::vector<int64_t>{0, 2, 2, 3, 3, 6}));
}

}  // namespace
}  // namespace dtrain::kernels::embedding_test
