#include <algorithm>

#include "base/check.h"
#include "kernels/layers/activation.h"
#include "kernels/simd/simd_table.h"
#include "kernels/write_mode.h"

namespace dtrain::kernels {
namespace {

const ActivationLoops<float>& LoopsOf(float /*type*/) { return ActiveTable().activation_f32; }
const ActivationLoops<BFloat16>& LoopsOf(BFloat16 /*type*/) {
  return ActiveTable().activation_bf16;
}

// Runs `loop` on parts of args.count elements; moved(begin) gives the arguments that begin there.
template <class Args, class Loop, class Moved>
void EachPart(const Args& args, bool in_place, ParallelFor parallel_for, Loop loop, Moved moved) {
  const int64_t bytes = args.count * static_cast<int64_t>(sizeof(*args.x));
  const Write write = WriteFor(bytes, in_place);
  parallel_for(args.count, kElementGrain, [&](int64_t begin, int64_t end) {
    Args part = moved(begin);
    part.count = end - begin;
    loop(part, write);
  });
}

template <class T>
void Forward(const ActivationForwardArgs<T>& args, ParallelFor parallel_for) {
  const auto loop = LoopsOf(T{}).forward[static_cast<int>(args.activation)];
  EachPart(args, args.y == args.x, parallel_for, loop, [&](int64_t begin) {
    return ActivationForwardArgs<T>{
        .activation = args.activation, .x = args.x + begin, .y = args.y + begin};
  });
}

template <class T>
void Backward(const ActivationBackwardArgs<T>& args, ParallelFor parallel_for) {
  const auto loop = LoopsOf(T{}).backward[static_cast<int>(args.activation)];
  const bool in_place = args.dx == args.x || args.dx == args.dy;
  EachPart(args, in_place, parallel_for, loop, [&](int64_t begin) {
    return ActivationBackwardArgs<T>{.activation = args.activation,
                                     .x = args.x + begin,
                                     .dy = args.dy + begin,
                                     .dx = args.dx + begin};
  });
}

// Calls body(part, strided, packed) for parts of [rows, hidden] with where they begin in a strided
// and in a packed buffer: any run of elements where rows follow each other, else whole rows.
template <class Args, class Body>
void EachGatedPart(const Args& args, ParallelFor parallel_for, Body body) {
  if (args.rows == 0 || args.hidden == 0) {
    return;
  }
  DT_CHECK_GE(args.stride, args.hidden);
  if (args.stride == args.hidden) {
    parallel_for(args.rows * args.hidden, kElementGrain, [&](int64_t begin, int64_t end) {
      Args part = args;
      part.rows = 1;
      part.hidden = part.stride = end - begin;
      body(part, begin, begin);
    });
    return;
  }
  const int64_t grain = std::max<int64_t>(1, kElementGrain / args.hidden);
  parallel_for(args.rows, grain, [&](int64_t begin, int64_t end) {
    Args part = args;
    part.rows = end - begin;
    body(part, begin * args.stride, begin * args.hidden);
  });
}

template <class T>
void GatedForward(const GatedForwardArgs<T>& args, ParallelFor parallel_for) {
  const auto loop = LoopsOf(T{}).gated_forward[static_cast<int>(args.activation)];
  const int64_t bytes = args.rows * args.hidden * static_cast<int64_t>(sizeof(T));
  const Write write = WriteFor(bytes, args.out == args.gate || args.out == args.up);
  EachGatedPart(args, parallel_for, [&](GatedForwardArgs<T> part, int64_t strided, int64_t packed) {
    part.gate += strided;
    part.up += strided;
    part.out += packed;
    loop(part, write);
  });
}

template <class T>
void GatedBackward(const GatedBackwardArgs<T>& args, ParallelFor parallel_for) {
  const auto loop = LoopsOf(T{}).gated_backward[static_cast<int>(args.activation)];
  const int64_t bytes = 2 * args.rows * args.hidden * static_cast<int64_t>(sizeof(T));
  const bool in_place = args.dgate == args.gate || args.dgate == args.dout || args.dup == args.up ||
                        args.dup == args.dout;
  const Write write = WriteFor(bytes, in_place);
  EachGatedPart(args, parallel_for,
                [&](GatedBackwardArgs<T> part, int64_t strided, int64_t packed) {
                  part.gate += strided;
                  part.up += strided;
                  part.dout += packed;
                  part.dgate += strided;
                  part.dup += strided;
                  loop(part, write);
                });
}

}  // namespace

void ActivationForwardCpu(const ActivationForwardArgs<float>& args, ParallelFor parallel_for) {
  Forward(args, parallel_for);
}
void ActivationForwardCpu(const ActivationForwardArgs<BFloat16>& args, ParallelFor parallel_for) {
  Forward(args, parallel_for);
}
void ActivationBackwardCpu(const ActivationBackwardArgs<float>& args, ParallelFor parallel_for) {
  Backward(args, parallel_for);
}
void ActivationBackwardCpu(const ActivationBackwardArgs<BFloat16>& args, ParallelFor parallel_for) {
  Backward(args, parallel_for);
}
void GatedForwardCpu(const GatedForwardArgs<float>& args, ParallelFor parallel_for) {
  GatedForward(args, parallel_for);
}
void GatedForwardCpu(const GatedForwardArgs<BFloat16>& args, ParallelFor parallel_for) {
  GatedForward(args, parallel_for);
}
void GatedBackwardCpu(const GatedBackwardArgs<float>& args, ParallelFor parallel_for) {
  GatedBackward(args, parallel_for);
}
void GatedBackwardCpu(const GatedBackwardArgs<BFloat16>& args, ParallelFor parallel_for) {
  GatedBackward(args, parallel_for);
}

}  // namespace dtrain::kernels
