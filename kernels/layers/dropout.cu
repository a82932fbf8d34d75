#include "kernels/cuda/cuda_index.h"
#include "kernels/cuda/cuda_vector.cuh"
#include "kernels/flat.h"
#include "kernels/layers/dropout_stream.h"

namespace dtrain::kernels {
namespace {

constexpr int kThreads = 256;

struct SetWordCuda {
  __device__ uint32_t operator()(uint32_t x) const { return x; }
};

// A thread takes a HalfSpan: four counters, whose four words are for eight neighbouring elements
// each, 32 apart.
template <class T, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    DropoutKernel(DropoutArgs<T> args, const PhiloxStream* device_stream, DropoutRule rule) {
  const int64_t thread = GridElement(blockIdx.x, threadIdx.x, kThreads, 1);
  const HalfSpan span = HalfSpanOf(thread);
  if (span.Element(0) >= args.count) {
    return;
  }
  const PhiloxStream stream = *device_stream;
  PhiloxWords<uint32_t> words[kWidth / 2];
#pragma unroll
  for (int lane = 0; lane < kWidth / 2; ++lane) {
    words[lane] =
        PhiloxRun(stream, span.run, static_cast<uint32_t>(span.lane + lane), SetWordCuda{});
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int64_t i = span.Element(k);
    bool kept[kWidth];
#pragma unroll
    for (int lane = 0; lane < kWidth; ++lane) {
      const uint32_t word = words[lane / 2].word[k];
      kept[lane] = (lane % 2 == 0 ? word << 16 : word) >= rule.limit;
    }
    if (kAligned && i + kWidth <= args.count) {
      Lanes<kWidth> x = LoadLanes<kWidth>(args.x + i);
#pragma unroll
      for (int lane = 0; lane < kWidth; ++lane) {
        x.v[lane] = kept[lane] ? x.v[lane] * rule.scale : 0.0F;
      }
      StoreLanes(args.out + i, x);
    } else {
#pragma unroll
      for (int lane = 0; lane < kWidth; ++lane) {
        if (i + lane < args.count) {
          const float x = Widen(args.x[i + lane]);
          args.out[i + lane] = Narrow<T>(kept[lane] ? x * rule.scale : 0.0F);
        }
      }
    }
  }
}

template <class T>
absl::Status Launch(const DropoutArgs<T>& args, const PhiloxStream* device_stream,
                    CudaStream stream) {
  RequireStream(stream);
  if (args.count == 0) {
    return absl::OkStatus();
  }
  if (args.p == 1) {
    const DType dtype = sizeof(T) == 4 ? DType::kFloat32 : DType::kBFloat16;
    return FillCuda(args.count, 0, {args.out, dtype}, stream);
  }
  const DropoutRule rule = MakeDropoutRule(args.p);
  const int64_t threads = HalfSpanThreads(args.count);
  const unsigned blocks = GridBlocks(threads, kThreads, 1);
  if (Aligned16(args.x, args.out)) {
    DropoutKernel<T, true><<<blocks, kThreads, 0, stream>>>(args, device_stream, rule);
  } else {
    DropoutKernel<T, false><<<blocks, kThreads, 0, stream>>>(args, device_stream, rule);
  }
  return LaunchStatus("dropout");
}

}  // namespace

absl::Status DropoutStreamCuda(const DropoutArgs<float>& args, const PhiloxStream* device_stream,
                               CudaStream stream) {
  return Launch(args, device_stream, stream);
}
absl::Status DropoutStreamCuda(const DropoutArgs<BFloat16>& args, const PhiloxStream* device_stream,
                               CudaStream stream) {
  return Launch(args, device_stream, stream);
}

}  // namespace dtrain::kernels
