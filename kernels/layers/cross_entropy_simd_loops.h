// The rows of cross-entropy on F32x16; a part of simd_loops.h.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/exp_math.h"
#include "kernels/layers/cross_entropy_math.h"
#include "kernels/simd/simd_core.h"
#include "kernels/simd/simd_sums.h"

namespace dtrain::kernels::DT_SIMD {
namespace {

// Elements whose maximum is found before their exponentials are added: a piece stays in the
// innermost cache, so that memory is read once.
constexpr int64_t kSoftmaxPiece = 2048;

inline void FillLowest(float* p) {
  for (int i = 0; i < 16; ++i) {
    p[i] = -std::numeric_limits<float>::infinity();
  }
}
inline void FillLowest(BFloat16* p) {
  for (int i = 0; i < 16; ++i) {
    p[i].bits = 0xff80;
  }
}

// Reads as io.Read does, with -infinity in the lanes after the end, where e^-infinity adds nothing.
template <class Io, class T>
auto ReadLogits(Io io, const T* p) {
  return io.Read(p);
}
template <class T>
F32x16 ReadLogits(Part io, const T* p) {
  T copy[16];
  FillLowest(copy);
  __builtin_memcpy(copy, p, static_cast<uint64_t>(io.count) * sizeof(T));
  return Load(copy);
}

// The largest of `floor` and x [n]; NaN is passed over.
template <class T>
DT_FLATTEN float LargestOf(const T* x, int64_t n, float floor) {
  Four most = kSetFour(floor);
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    most = Max(LoadFour(x + i), most);
  }
  for (; i + 16 <= n; i += 16) {
    most.a = Max(Load(x + i), most.a);
  }
  if (i < n) {
    most.b = Max(ReadLogits(Part{n - i}, x + i), most.b);
  }
  float lanes[16];
  Store(lanes, Max(Max(most.a, most.b), Max(most.c, most.d)));
  for (const float lane : lanes) {
    floor = lane > floor ? lane : floor;
  }
  return floor;
}

// REQUIRES: x <= 0.
inline double ExpOf(float x) {
  float lanes[16];
  Store(lanes, ExpNonPositive(Set(x), kSet));
  return static_cast<double>(lanes[0]);
}

// log(sum_j e^x_j) by a running maximum (Milakov & Gimelshein 2018, arXiv 1805.02867). The maximum
// starts at the lowest finite value, so that a piece of nothing but -infinity adds 0 and not NaN.
template <class T>
float LogSumExp(const T* x, int64_t n) {
  float largest = -std::numeric_limits<float>::max();
  double sum = 0;
  for (int64_t begin = 0; begin < n; begin += kSoftmaxPiece) {
    const int64_t count = n - begin < kSoftmaxPiece ? n - begin : kSoftmaxPiece;
    const T* const piece = x + begin;
    const float next = LargestOf(piece, count, largest);
    if (next > largest) {
      sum *= ExpOf(largest - next);
      largest = next;
    }
    sum += static_cast<double>(SumProducts(count, [&](auto io, int64_t i, auto add) {
      const auto one = io.kSetAll(1.0F);
      add(ExpNonPositiveFor<T>(ReadLogits(io, piece + i) - io.kSetAll(largest), io.kSetAll), one);
    }));
  }
  return static_cast<float>(static_cast<double>(largest) + __builtin_log(sum));
}

template <class T>
double SumOf(const T* x, int64_t n) {
  double sum = 0;
  for (int64_t begin = 0; begin < n; begin += kSoftmaxPiece) {
    const int64_t count = n - begin < kSoftmaxPiece ? n - begin : kSoftmaxPiece;
    sum += static_cast<double>(SumProducts(count, [&](auto io, int64_t i, auto add) {
      add(io.Read(x + begin + i), io.kSetAll(1.0F));
    }));
  }
  return sum;
}

template <class T>
float ReadOne(const T* p) {
  float lanes[16];
  Store(lanes, Part{1}.Read(p));
  return lanes[0];
}

template <class T>
void CrossEntropyRowForward(const CrossEntropyArgs<T>& args, int64_t row) {
  const int64_t target = args.targets[row];
  if (target == args.options.ignore_index) {
    args.losses[row] = 0;
    args.lse[row] = 0;
    return;
  }
  if (!TargetInRange(target, args.vocab)) {
    args.losses[row] = std::numeric_limits<float>::quiet_NaN();
    args.lse[row] = std::numeric_limits<float>::quiet_NaN();
    return;
  }
  const T* const x = args.logits + row * args.vocab;
  const float lse = LogSumExp(x, args.vocab);
  const double logit_sum = args.options.label_smoothing > 0 ? SumOf(x, args.vocab) : 0;
  args.lse[row] = lse;
  args.losses[row] =
      CrossEntropyRowLoss(lse, ReadOne(x + target), logit_sum, args.vocab, args.options);
}

template <class T>
void CrossEntropyRowBackward(const CrossEntropyArgs<T>& args, int64_t row, Write write) {
  const int64_t target = args.targets[row];
  T* const out = args.gradient + row * args.vocab;
  if (target == args.options.ignore_index) {
    Each(args.vocab, out, write,
         [&](auto io, int64_t i) { io.WriteOut(out + i, io.kSetAll(0.0F)); });
    return;
  }
  const T* const x = args.logits + row * args.vocab;
  const bool in_range = TargetInRange(target, args.vocab);
  const float target_logit = in_range ? ReadOne(x + target) : 0.0F;
  const CrossEntropyRowGradient row_gradient =
      MakeCrossEntropyRowGradient(args.lse[row], args.vocab, args.gradient_scale, args.options);
  const float lse = args.lse[row];
  const auto gradient_of = [=](auto logits, float everywhere, auto set) {
    return Fma(ExpNonPositiveFor<T>(logits - set(lse), set), set(row_gradient.along_p),
               set(everywhere));
  };
  Each<ByMany>(args.vocab, out, write, [&](auto io, int64_t i) {
    PrefetchFarFor(io, x + args.vocab + i);
    io.WriteOut(out + i, gradient_of(io.Read(x + i), row_gradient.everywhere, io.kSetAll));
  });
  if (in_range) {  // Again from the logit, so that it is rounded once.
    const float everywhere = row_gradient.everywhere + row_gradient.at_target;
    Part{1}.Write(out + target, gradient_of(Set(target_logit), everywhere, kSet));
  }
}

template <class T>
void CrossEntropyForward(const CrossEntropyArgs<T>& args, int64_t begin, int64_t end, Write write) {
  for (int64_t row = begin; row < end; ++row) {
    CrossEntropyRowForward(args, row);
    if (args.gradient != nullptr) {
      CrossEntropyRowBackward(args, row, write);
    }
  }
}

constexpr CrossEntropyLoops kCrossEntropyLoops = {
    .forward_f32 = CrossEntropyForward<float>,
    .forward_bf16 = CrossEntropyForward<BFloat16>,
};

}  // namespace
}  // namespace dtrain::kernels::DT_SIMD
