#include <algorithm>

#include "base/check.h"
#include "kernels/layers/cross_entropy.h"
#include "kernels/simd/simd_table.h"
#include "kernels/write_mode.h"

namespace dtrain::kernels {
namespace {

template <class T, class Loop>
void Rows(const CrossEntropyArgs<T>& args, ParallelFor parallel_for, Loop loop) {
  DT_CHECK_GT(args.vocab, 0);
  DT_CHECK(args.options.label_smoothing >= 0 && args.options.label_smoothing <= 1)
      << " label_smoothing " << args.options.label_smoothing;
  const int64_t bytes = args.tokens * args.vocab * static_cast<int64_t>(sizeof(T));
  const Write write = WriteFor(bytes, args.gradient == args.logits);
  parallel_for(args.tokens, std::max<int64_t>(1, kElementGrain / args.vocab),
               [&](int64_t begin, int64_t end) { loop(args, begin, end, write); });
}

}  // namespace

void CrossEntropyForwardCpu(const CrossEntropyArgs<float>& args, ParallelFor parallel_for) {
  Rows(args, parallel_for, ActiveTable().cross_entropy.forward_f32);
}

void CrossEntropyForwardCpu(const CrossEntropyArgs<BFloat16>& args, ParallelFor parallel_for) {
  Rows(args, parallel_for, ActiveTable().cross_entropy.forward_bf16);
}

CrossEntropyTotals CrossEntropyTotalsCpu(int64_t tokens, const float* losses,
                                         const int64_t* targets, int64_t ignore_index) {
  CrossEntropyTotals totals;
  for (int64_t i = 0; i < tokens; ++i) {
    totals.sum += static_cast<double>(losses[i]);
    totals.count += targets[i] == ignore_index ? 0 : 1;
  }
  return totals;
}

}  // namespace dtrain::kernels
