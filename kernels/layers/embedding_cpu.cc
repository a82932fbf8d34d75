#include <algorithm>

#include "base/check.h"
#include "kernels/layers/embedding.h"
#include "kernels/simd/simd_table.h"
#include "kernels/write_mode.h"

namespace dtrain::kernels {
namespace {

// The first row at which at least `work` of rows written and tokens read lies before.
int64_t RowAt(int64_t work, int64_t vocab, const int64_t* starts) {
  int64_t low = 0;
  int64_t high = vocab;
  while (low < high) {
    const int64_t row = (low + high) / 2;
    if (row + starts[row] < work) {
      low = row + 1;
    } else {
      high = row;
    }
  }
  return low;
}

template <class T, class Loop>
void Backward(const EmbeddingBackwardArgs<T>& args, ParallelFor parallel_for, Loop loop) {
  DT_CHECK_GT(args.width, 0);
  SortTokensById(args.tokens, args.vocab, args.ids, args.order, args.starts);
  // Threads share rows and tokens together, because the frequent ids stand side by side at the
  // table's beginning.
  const int64_t work = args.vocab + args.tokens;
  const Write write =
      WriteFor(args.vocab * args.width * static_cast<int64_t>(sizeof(T)), /*in_place=*/false);
  parallel_for(work, std::max<int64_t>(1, kElementGrain / args.width),
               [&](int64_t begin, int64_t end) {
                 loop(args, RowAt(begin, args.vocab, args.starts),
                      end >= work ? args.vocab : RowAt(end, args.vocab, args.starts), write);
               });
}

}  // namespace

void SortTokensById(int64_t tokens, int64_t vocab, const int64_t* ids, int64_t* order,
                    int64_t* starts) {
  // Counts go two places up, so that after the placement below they have become the starts.
  std::fill_n(starts, vocab + 2, 0);
  for (int64_t i = 0; i < tokens; ++i) {
    DT_CHECK(ids[i] >= 0 && ids[i] < vocab) << " token " << i << " has id " << ids[i];
    ++starts[ids[i] + 2];
  }
  for (int64_t v = 2; v < vocab + 2; ++v) {
    starts[v] += starts[v - 1];
  }
  for (int64_t i = 0; i < tokens; ++i) {
    order[starts[ids[i] + 1]++] = i;
  }
}

void EmbeddingBackwardCpu(const EmbeddingBackwardArgs<float>& args, ParallelFor parallel_for) {
  Backward(args, parallel_for, ActiveTable().embedding.backward_f32);
}

void EmbeddingBackwardCpu(const EmbeddingBackwardArgs<BFloat16>& args, ParallelFor parallel_for) {
  Backward(args, parallel_for, ActiveTable().embedding.backward_bf16);
}

}  // namespace dtrain::kernels
