#include "kernels/simd_table.h"
#include "kernels/swiglu.h"
#include "kernels/write_mode.h"

namespace dtrain::kernels {
namespace {

template <class T, class Loop>
void Forward(const SwiGluForwardArgs<T>& args, ParallelFor parallel_for, Loop loop) {
  const int64_t bytes = args.count * static_cast<int64_t>(sizeof(T));
  const Write write = WriteFor(bytes, args.out == args.gate || args.out == args.up);
  parallel_for(args.count, kElementGrain, [&](int64_t begin, int64_t end) {
    loop({.count = end - begin,
          .gate = args.gate + begin,
          .up = args.up + begin,
          .out = args.out + begin},
         write);
  });
}

template <class T, class Loop>
void Backward(const SwiGluBackwardArgs<T>& args, ParallelFor parallel_for, Loop loop) {
  const int64_t bytes = 2 * args.count * static_cast<int64_t>(sizeof(T));
  const bool in_place = args.dgate == args.gate || args.dgate == args.dout || args.dup == args.up ||
                        args.dup == args.dout;
  const Write write = WriteFor(bytes, in_place);
  parallel_for(args.count, kElementGrain, [&](int64_t begin, int64_t end) {
    loop({.count = end - begin,
          .gate = args.gate + begin,
          .up = args.up + begin,
          .dout = args.dout + begin,
          .dgate = args.dgate + begin,
          .dup = args.dup + begin},
         write);
  });
}

}  // namespace

void SwiGluForwardCpu(const SwiGluForwardArgs<float>& args, ParallelFor parallel_for) {
  Forward(args, parallel_for, ActiveTable().swiglu_forward_f32);
}

void SwiGluForwardCpu(const SwiGluForwardArgs<BFloat16>& args, ParallelFor parallel_for) {
  Forward(args, parallel_for, ActiveTable().swiglu_forward_bf16);
}

void SwiGluBackwardCpu(const SwiGluBackwardArgs<float>& args, ParallelFor parallel_for) {
  Backward(args, parallel_for, ActiveTable().swiglu_backward_f32);
}

void SwiGluBackwardCpu(const SwiGluBackwardArgs<BFloat16>& args, ParallelFor parallel_for) {
  Backward(args, parallel_for, ActiveTable().swiglu_backward_bf16);
}

}  // namespace dtrain::kernels
