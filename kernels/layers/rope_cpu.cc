#include <algorithm>

#include "base/check.h"
#include "kernels/layers/rope.h"
#include "kernels/simd/simd_table.h"
#include "kernels/write_mode.h"

namespace dtrain::kernels {
namespace {

template <class T, class Loop>
void Run(const RopeArgs<T>& args, ParallelFor parallel_for, Loop loop) {
  DT_CHECK_EQ(args.rotary_dim % 2, 0);
  DT_CHECK_LE(args.rotary_dim, args.head_dim);
  DT_CHECK_GT(args.sequence, 0);
  int64_t width = 0;  // Elements that a token's parts write.
  bool in_place = false;
  for (const RopeHeads<T>& part : args.parts) {
    width += part.heads * args.head_dim;
    in_place = in_place || (part.heads > 0 && part.in == part.out);
    DT_CHECK(part.in != part.out || part.in_stride == part.out_stride) << " in place, other rows";
  }
  if (width == 0) {
    return;
  }
  const int64_t bytes = args.tokens * width * static_cast<int64_t>(sizeof(T));
  const Write write = WriteFor(bytes, in_place);
  parallel_for(args.tokens, std::max<int64_t>(1, kElementGrain / width),
               [&](int64_t begin, int64_t end) { loop(args, begin, end, write); });
}

}  // namespace

void RopeCpu(const RopeArgs<float>& args, ParallelFor parallel_for) {
  Run(args, parallel_for, ActiveTable().rope_f32);
}
void RopeCpu(const RopeArgs<BFloat16>& args, ParallelFor parallel_for) {
  Run(args, parallel_for, ActiveTable().rope_bf16);
}

}  // namespace dtrain::kernels
