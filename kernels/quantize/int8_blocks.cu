#include "base/check.h"
#include "kernels/cuda/cuda_group_index.h"
#include "kernels/cuda/cuda_packed.cuh"
#include "kernels/quantize/int8_blocks.h"
#include "kernels/quantize/int8_blocks_math.h"

namespace dtrain::kernels {
namespace {

constexpr int kThreads = 256;

struct Extent {
  float largest = 0;
  float poison = 0;

  __device__ void Add(float x) {
    const float magnitude = fabsf(x);
    largest = magnitude > largest ? magnitude : largest;
    poison += x * 0.0F;
  }
  // The scale over the sixteen threads of a team.
  __device__ Int8Scale Scale() {
#pragma unroll
    for (int distance = kTeam / 2; distance > 0; distance /= 2) {
      const float other = __shfl_xor_sync(0xffffffffU, largest, distance, kTeam);
      largest = other > largest ? other : largest;
      poison += __shfl_xor_sync(0xffffffffU, poison, distance, kTeam);
    }
    return MakeInt8Scale(largest, poison);
  }
};

// A team for a block. With kWide the block is a multiple of sixteen elements and everything is
// aligned; the last block may be short by whole sixteens.
template <class T, bool kWide, bool kError>
__global__ void __launch_bounds__(kThreads) QuantizeKernel(QuantizeInt8Args args) {
  constexpr int kEach = kWide ? kPack : 1;
  const int64_t thread = GridElement(blockIdx.x, threadIdx.x, kThreads, 1);
  const TeamSpan span = TeamSpanOf(thread, args.block, args.n, kEach);
  const auto* const src = static_cast<const T*>(args.src.data);
  Extent extent;
  for (int64_t i = span.mine; i < span.end; i += kTeam * kEach) {
    if constexpr (kWide) {
      const Packed x = LoadPacked(src + i);
#pragma unroll
      for (int lane = 0; lane < kPack; ++lane) {
        extent.Add(x.v[lane]);
      }
    } else {
      extent.Add(Widen(src[i]));
    }
  }
  const Int8Scale scale = extent.Scale();  // Whole warps take part: threads past the end have 0.
  if (span.mine == span.first && span.first < args.n) {
    args.scales[span.block] = scale.scale;
  }
  const bool usable = scale.inverse != 0.0F;
  for (int64_t i = span.mine; i < span.end; i += kTeam * kEach) {
    if constexpr (kWide) {
      const Packed x = LoadPacked(src + i);
      Bytes<int8_t> values;
      Packed error;
#pragma unroll
      for (int lane = 0; lane < kPack; ++lane) {
        const float rounded = usable ? rintf(x.v[lane] * scale.inverse) : 0.0F;
        values.v[lane] = static_cast<int8_t>(rounded);
        error.v[lane] = x.v[lane] - rounded * scale.scale;
      }
      StoreBytes(args.values + i, values);
      if constexpr (kError) {
        StorePacked(args.error + i, error);
      }
    } else {
      const float x = Widen(src[i]);
      const float rounded = usable ? rintf(x * scale.inverse) : 0.0F;
      args.values[i] = static_cast<int8_t>(rounded);
      if constexpr (kError) {
        args.error[i] = x - rounded * scale.scale;
      }
    }
  }
}

template <class T, bool kWide, bool kAccumulate>
__global__ void __launch_bounds__(kThreads) DequantizeKernel(DequantizeInt8Args args) {
  constexpr int kEach = kPackInto<T>;
  const int64_t i = GridElement(blockIdx.x, threadIdx.x, kThreads, kWide ? kEach : 1);
  if (i >= args.n) {
    return;
  }
  auto* const dst = static_cast<T*>(args.dst.data);
  const float scale = args.scales[i / args.block];
  if constexpr (kWide) {
    const Bytes<int8_t, kEach> values = LoadBytes<kEach>(args.values + i);
    Floats<kEach> out = {};
    if constexpr (kAccumulate) {
      out = LoadPacked<kEach>(dst + i);
    }
#pragma unroll
    for (int lane = 0; lane < kEach; ++lane) {
      const float x = static_cast<float>(values.v[lane]) * scale;
      out.v[lane] = kAccumulate ? out.v[lane] + x : x;
    }
    StorePacked(dst + i, out);
  } else {
    const float x = static_cast<float>(args.values[i]) * scale;
    dst[i] = Narrow<T>(kAccumulate ? Widen(dst[i]) + x : x);
  }
}

template <class T>
void LaunchQuantize(const QuantizeInt8Args& args, bool wide, CudaStream stream) {
  const unsigned grid = GridBlocks(TeamThreads(Int8Blocks(args.n, args.block)), kThreads, 1);
  if (wide && args.error != nullptr) {
    QuantizeKernel<T, true, true><<<grid, kThreads, 0, stream>>>(args);
  } else if (wide) {
    QuantizeKernel<T, true, false><<<grid, kThreads, 0, stream>>>(args);
  } else if (args.error != nullptr) {
    QuantizeKernel<T, false, true><<<grid, kThreads, 0, stream>>>(args);
  } else {
    QuantizeKernel<T, false, false><<<grid, kThreads, 0, stream>>>(args);
  }
}

template <class T>
void LaunchDequantize(const DequantizeInt8Args& args, bool wide, CudaStream stream) {
  const unsigned grid = GridBlocks(args.n, kThreads, wide ? kPackInto<T> : 1);
  if (wide && args.accumulate) {
    DequantizeKernel<T, true, true><<<grid, kThreads, 0, stream>>>(args);
  } else if (wide) {
    DequantizeKernel<T, true, false><<<grid, kThreads, 0, stream>>>(args);
  } else if (args.accumulate) {
    DequantizeKernel<T, false, true><<<grid, kThreads, 0, stream>>>(args);
  } else {
    DequantizeKernel<T, false, false><<<grid, kThreads, 0, stream>>>(args);
  }
}

void RequireTypes(int64_t block, DType dtype) {
  DT_CHECK_GE(block, 1);
  DT_CHECK(dtype == DType::kFloat32 || dtype == DType::kBFloat16)
      << " int8 blocks hold fp32 or bf16, not " << DTypeName(dtype);
}

}  // namespace

absl::Status QuantizeInt8Cuda(const QuantizeInt8Args& args, CudaStream stream) {
  RequireStream(stream);
  RequireTypes(args.block, args.src.dtype);
  if (args.n == 0) {
    return absl::OkStatus();
  }
  const bool wide = args.block % kPack == 0 && args.n % kPack == 0 && Aligned16(args.src.data) &&
                    Aligned16(args.values) && Aligned16(args.error);
  if (args.src.dtype == DType::kFloat32) {
    LaunchQuantize<float>(args, wide, stream);
  } else {
    LaunchQuantize<BFloat16>(args, wide, stream);
  }
  return LaunchStatus("int8 quantise");
}

absl::Status DequantizeInt8Cuda(const DequantizeInt8Args& args, CudaStream stream) {
  RequireStream(stream);
  RequireTypes(args.block, args.dst.dtype);
  if (args.n == 0) {
    return absl::OkStatus();
  }
  const bool wide = args.block % kPack == 0 && args.n % kPack == 0 && Aligned16(args.dst.data) &&
                    Aligned16(args.values);
  if (args.dst.dtype == DType::kFloat32) {
    LaunchDequantize<float>(args, wide, stream);
  } else {
    LaunchDequantize<BFloat16>(args, wide, stream);
  }
  return LaunchStatus("int8 dequantise");
}

}  // namespace dtrain::kernels
