#include "kernels/cuda_index.h"
#include "kernels/cuda_vector.cuh"
#include "kernels/dropout.h"
#include "kernels/flat.h"

namespace dtrain::kernels {
namespace {

constexpr int kThreads = 256;

struct SetWordCuda {
  __device__ uint32_t operator()(uint32_t x) const { return x; }
};

// A thread takes a RandomSpan: eight counters, whose four words are for eight neighbouring elements
// each, sixteen apart.
template <class T, bool kAligned>
__global__ void __launch_bounds__(kThreads) DropoutKernel(DropoutArgs<T> args, DropoutRule rule) {
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const RandomSpan span = RandomSpanOf(thread, 0);
  if (span.Element(0, 0) >= args.count) {
    return;
  }
  PhiloxWords<uint32_t> words[kWidth];
#pragma unroll
  for (int lane = 0; lane < kWidth; ++lane) {
    words[lane] =
        PhiloxRun(args.stream, span.run, static_cast<uint32_t>(span.lane + lane), SetWordCuda{});
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int64_t i = span.Element(k, 0);
    if (kAligned && i + kWidth <= args.count) {
      Lanes<kWidth> x = LoadLanes<kWidth>(args.x + i);
#pragma unroll
      for (int lane = 0; lane < kWidth; ++lane) {
        x.v[lane] = words[lane].word[k] >= rule.threshold ? x.v[lane] * rule.scale : 0.0F;
      }
      StoreLanes(args.out + i, x);
    } else {
#pragma unroll
      for (int lane = 0; lane < kWidth; ++lane) {
        if (i + lane < args.count) {
          const float x = Widen(args.x[i + lane]);
          const float kept = words[lane].word[k] >= rule.threshold ? x * rule.scale : 0.0F;
          args.out[i + lane] = Narrow<T>(kept);
        }
      }
    }
  }
}

template <class T>
absl::Status Launch(const DropoutArgs<T>& args, CudaStream stream) {
  RequireStream(stream);
  if (args.count == 0) {
    return absl::OkStatus();
  }
  if (args.p == 1) {
    const DType dtype = sizeof(T) == 4 ? DType::kFloat32 : DType::kBFloat16;
    return FillCuda(args.count, 0, {args.out, dtype}, stream);
  }
  const DropoutRule rule = MakeDropoutRule(args.p);
  const int64_t threads = RandomThreads(args.count, 0);
  const auto blocks = static_cast<unsigned>((threads + kThreads - 1) / kThreads);
  if (Aligned16(args.x, args.out)) {
    DropoutKernel<T, true><<<blocks, kThreads, 0, stream>>>(args, rule);
  } else {
    DropoutKernel<T, false><<<blocks, kThreads, 0, stream>>>(args, rule);
  }
  return LaunchStatus("dropout");
}

}  // namespace

absl::Status DropoutCuda(const DropoutArgs<float>& args, CudaStream stream) {
  return Launch(args, stream);
}
absl::Status DropoutCuda(const DropoutArgs<BFloat16>& args, CudaStream stream) {
  return Launch(args, stream);
}

}  // namespace dtrain::kernels
