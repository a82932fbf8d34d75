#include "base/check.h"
#include "kernels/cuda/cuda_vector.cuh"
#include "kernels/layers/rope.h"
#include "kernels/layers/rope_math.h"

namespace dtrain::kernels {
namespace {

constexpr int kThreads = 128;

template <int kLanes, class T>
__device__ void TurnHalves(const RopeArgs<T>& args, const T* in, T* out, const float* cos,
                           const float* sin) {
  const int64_t half = args.rotary_dim / 2;
  const Lanes<kLanes> a = LoadLanes<kLanes>(in);
  const Lanes<kLanes> b = LoadLanes<kLanes>(in + half);
  const Lanes<kLanes> c = LoadLanes<kLanes>(cos);
  const Lanes<kLanes> s = LoadLanes<kLanes>(sin);
  const float sign = args.inverse ? -1.0F : 1.0F;
  Lanes<kLanes> first;
  Lanes<kLanes> second;
#pragma unroll
  for (int lane = 0; lane < kLanes; ++lane) {
    first.v[lane] = RopeTurn(a.v[lane], b.v[lane], c.v[lane], s.v[lane] * -sign);
    second.v[lane] = RopeTurn(b.v[lane], a.v[lane], c.v[lane], s.v[lane] * sign);
  }
  StoreLanes(out, first);
  StoreLanes(out + half, second);
}

// kLanes elements are kLanes / 2 pairs.
template <int kLanes, class T>
__device__ void TurnNeighbours(const RopeArgs<T>& args, const T* in, T* out, const float* cos,
                               const float* sin) {
  const Lanes<kLanes> x = LoadLanes<kLanes>(in);
  const Lanes<kLanes / 2> c = LoadLanes<kLanes / 2>(cos);
  const Lanes<kLanes / 2> s = LoadLanes<kLanes / 2>(sin);
  const float sign = args.inverse ? -1.0F : 1.0F;
  Lanes<kLanes> turned;
#pragma unroll
  for (int lane = 0; lane < kLanes; ++lane) {
    const float along = s.v[lane / 2] * (lane % 2 == 0 ? -sign : sign);
    turned.v[lane] = RopeTurn(x.v[lane], x.v[lane ^ 1], c.v[lane / 2], along);
  }
  StoreLanes(out, turned);
}

// One pair, without 16-byte loads; its elements are `apart` from each other.
template <class T>
__device__ void TurnPair(const RopeArgs<T>& args, const T* in, T* out, int64_t apart, float cos,
                         float sin) {
  const float a = Widen(in[0]);
  const float b = Widen(in[apart]);
  const float s = args.inverse ? -sin : sin;
  out[0] = Narrow<T>(RopeTurn(a, b, cos, -s));
  out[apart] = Narrow<T>(RopeTurn(b, a, cos, s));
}

// A block is of RowBlockOf's shape over the pieces of tokens; blockIdx.y counts on where a token
// has more of them than a block has threads.
template <class T, bool kAligned>
__global__ void __launch_bounds__(kThreads) Kernel(RopeArgs<T> args, int64_t items) {
  constexpr int kLanes = kAligned ? kWidth : 2;
  const int64_t token = GridElement(blockIdx.x, threadIdx.y, blockDim.y, 1);
  const int64_t item = GridElement(blockIdx.y, threadIdx.x, blockDim.x, 1);
  if (token >= args.tokens || item >= items) {
    return;
  }
  const RopePlace place = RopePlaceOf(args, item, kLanes);
  const RopeHeads<T>& part = args.parts[place.part];
  const int64_t at = place.head * args.head_dim + place.element;
  const T* const in = part.in + token * part.in_stride + at;
  T* const out = part.out + token * part.out_stride + at;
  const int64_t left = RopePieceLimit(args, place) - place.element;
  const int64_t row = RopePosition(args, token) * (args.rotary_dim / 2);
  const bool halves = args.form == RopeForm::kHalfSplit;
  if (!place.rotated) {
    if constexpr (kAligned) {
      StoreLanes(out, LoadLanes<kLanes>(in));
    } else {
      for (int lane = 0; lane < kLanes && lane < left; ++lane) {
        out[lane] = in[lane];
      }
    }
  } else if constexpr (kAligned) {
    if (halves) {
      TurnHalves<kLanes>(args, in, out, args.cos + row + place.element,
                         args.sin + row + place.element);
    } else {
      const int64_t pair = row + place.element / 2;
      TurnNeighbours<kLanes>(args, in, out, args.cos + pair, args.sin + pair);
    }
  } else if (halves) {
    for (int lane = 0; lane < kLanes && lane < left; ++lane) {
      const int64_t pair = row + place.element + lane;
      TurnPair(args, in + lane, out + lane, args.rotary_dim / 2, args.cos[pair], args.sin[pair]);
    }
  } else {
    const int64_t pair = row + place.element / 2;
    TurnPair(args, in, out, 1, args.cos[pair], args.sin[pair]);
  }
}

// Whether every piece of eight is whole and its 16-byte words aligned.
template <class T>
bool WholePieces(const RopeArgs<T>& args) {
  const int64_t span = args.form == RopeForm::kHalfSplit ? args.rotary_dim / 2 : args.rotary_dim;
  bool whole = span % kWidth == 0 && args.head_dim % kWidth == 0 &&
               (args.rotary_dim / 2) % 4 == 0 && Aligned16(args.cos, args.sin);
  for (const RopeHeads<T>& part : args.parts) {
    whole = whole && Aligned16(part.in, part.out) && part.in_stride % kWidth == 0 &&
            part.out_stride % kWidth == 0;
  }
  return whole;
}

template <class T>
absl::Status Run(const RopeArgs<T>& args, CudaStream stream) {
  RequireStream(stream);
  DT_CHECK_EQ(args.rotary_dim % 2, 0);
  DT_CHECK_LE(args.rotary_dim, args.head_dim);
  DT_CHECK_GT(args.sequence, 0);
  const bool whole = WholePieces(args);
  const int64_t items = RopeItemsOfAToken(args, whole ? kWidth : 2);
  if (args.tokens == 0 || items == 0) {
    return absl::OkStatus();
  }
  const RowBlock block = RowBlockOf(items, kThreads);
  const dim3 threads(block.across, block.rows);
  const dim3 blocks(GridBlocks(args.tokens, block.rows, 1), GridBlocks(items, block.across, 1));
  if (whole) {
    Kernel<T, true><<<blocks, threads, 0, stream>>>(args, items);
  } else {
    Kernel<T, false><<<blocks, threads, 0, stream>>>(args, items);
  }
  return LaunchStatus("rope");
}

}  // namespace

absl::Status RopeCuda(const RopeArgs<float>& args, CudaStream stream) { return Run(args, stream); }
absl::Status RopeCuda(const RopeArgs<BFloat16>& args, CudaStream stream) {
  return Run(args, stream);
}

}  // namespace dtrain::kernels
