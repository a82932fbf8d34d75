// The kernels of NcclKernels: sums of squares, sums in rank order and casts, on the group's stream.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "comm/nccl/plugin/nccl_kernels_cuda.h"
#include "comm/nccl/plugin/nccl_kernels_index.h"

namespace dtrain::comm {
namespace {

constexpr int kThreads = kNcclKernelThreads;
// The most partial sums. Their number follows from the number of elements and not from the GPU, so
// that results have the same bits on every repeat and device.
constexpr int kPartials = 4 * kThreads;

// The elements that a thread takes in a step: 16 bytes of 16-bit elements, or 32 bytes of fp32. It
// takes one element if the addresses are not aligned, and at the end.
constexpr int kWidth = 8;

__device__ float Widen(float x) { return x; }
__device__ float Widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ float Widen(__half x) { return __half2float(x); }
template <typename T>
__device__ T Narrow(float x);
template <>
__device__ float Narrow<float>(float x) {
  return x;
}
template <>
__device__ __nv_bfloat16 Narrow<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __half Narrow<__half>(float x) {
  return __float2half_rn(x);
}

template <int kLanes>
struct Lanes {
  float v[kLanes];
};

template <int kLanes, typename T>
__device__ Lanes<kLanes> Load(const T* from) {
  Lanes<kLanes> lanes;
  if constexpr (kLanes == 1) {
    lanes.v[0] = Widen(*from);
  } else {
    uint4 raw[kLanes * sizeof(T) / 16];
    T elements[kLanes];
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(raw) / 16); ++i) {
      raw[i] = reinterpret_cast<const uint4*>(from)[i];
    }
    memcpy(elements, raw, sizeof(raw));
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      lanes.v[i] = Widen(elements[i]);
    }
  }
  return lanes;
}

template <int kLanes, typename T>
__device__ void Store(const Lanes<kLanes>& lanes, T* to) {
  if constexpr (kLanes == 1) {
    *to = Narrow<T>(lanes.v[0]);
  } else {
    T elements[kLanes];
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      elements[i] = Narrow<T>(lanes.v[i]);
    }
    uint4 raw[kLanes * sizeof(T) / 16];
    memcpy(raw, elements, sizeof(raw));
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(raw) / 16); ++i) {
      reinterpret_cast<uint4*>(to)[i] = raw[i];
    }
  }
}

bool Aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

// Calls body(lanes, i) for this thread's elements [i, i + kLanes) of `count`, and one by one at the
// end. All threads of the grid together take each element once.
template <int kLanes, typename Body>
__device__ void Each(size_t count, Body body) {
  const NcclKernelSpan span = NcclKernelSpanOf(count, kLanes, blockIdx.x, threadIdx.x, gridDim.x);
  for (size_t i = span.first; i < span.whole; i += span.step) {
    body(Lanes<kLanes>{}, i);
  }
  for (size_t i = span.rest; kLanes > 1 && i < count; i += span.rest_step) {
    body(Lanes<1>{}, i);
  }
}

// The sum over the block's threads, by a tree in shared memory. Thread 0 gets it.
__device__ double BlockSum(double value) {
  __shared__ double sums[kThreads];
  sums[threadIdx.x] = value;
  __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    __syncthreads();
  }
  return sums[0];
}

// The alignment of the addresses decides which elements a thread sums, so it is the same on repeat.
template <int kLanes, typename T>
__global__ void __launch_bounds__(kThreads)
    SquarePartials(const T* data, size_t count, double* partials) {
  LongSquareSum squares = {};
  Each<kLanes>(count, [&](auto lanes, size_t i) {
    constexpr int kMine = sizeof(lanes) / sizeof(float);
    lanes = Load<kMine>(data + i);
    squares.template Add<kMine>(lanes.v);
  });
  const double sum = BlockSum(squares.sum());
  if (threadIdx.x == 0) {
    partials[blockIdx.x] = sum;
  }
}

// Returns how many partial sums it makes.
template <typename T>
unsigned LaunchSquarePartials(const void* data, size_t count, double* partials,
                              cudaStream_t stream) {
  const auto* const elements = static_cast<const T*>(data);
  const int lanes = Aligned(data) ? kWidth : 1;
  const unsigned blocks = std::clamp(NcclKernelBlocks(count, lanes), 1U, unsigned{kPartials});
  if (lanes == kWidth) {
    SquarePartials<kWidth><<<blocks, kThreads, 0, stream>>>(elements, count, partials);
  } else {
    SquarePartials<1><<<blocks, kThreads, 0, stream>>>(elements, count, partials);
  }
  return blocks;
}

__global__ void AddPartials(const double* partials, unsigned count, double* sum) {
  double mine = 0;
  for (unsigned i = threadIdx.x; i < count; i += kThreads) {
    mine += partials[i];
  }
  const double total = BlockSum(mine);
  if (threadIdx.x == 0) {
    *sum = total;
  }
}

__global__ void AddInOrder(const double* values, int count, double* sum) {
  double total = 0;
  for (int i = 0; i < count; ++i) {
    total += values[i];
  }
  *sum = total;
}

template <int kLanes, typename T>
__global__ void __launch_bounds__(kThreads)
    AddParts(const T* parts, int part_count, size_t count, float scale, T* output) {
  Each<kLanes>(count, [&](auto total, size_t i) {
    constexpr int kMine = sizeof(total) / sizeof(float);
    total = Load<kMine>(parts + i);
#pragma unroll 1  // An unrolled loop spills on sm_100.
    for (int part = 1; part < part_count; ++part) {
      const auto more = Load<kMine>(parts + static_cast<size_t>(part) * count + i);
#pragma unroll
      for (int lane = 0; lane < kMine; ++lane) {
        total.v[lane] = __fadd_rn(total.v[lane], more.v[lane]);
      }
    }
#pragma unroll
    for (int lane = 0; lane < kMine; ++lane) {
      total.v[lane] = __fmul_rn(total.v[lane], scale);
    }
    Store(total, output + i);
  });
}

cudaStream_t Native(CudaStream* stream) { return reinterpret_cast<cudaStream_t>(stream); }
CudaResult Launched() { return static_cast<CudaResult>(cudaGetLastError()); }

CudaResult SumOfSquares(const void* data, size_t count, DType dtype, double* sum, void* scratch,
                        CudaStream* stream) {
  auto* const partials = static_cast<double*>(scratch);
  const cudaStream_t native = Native(stream);
  unsigned made = 0;
  switch (dtype) {
    case DType::kFloat32:
      made = LaunchSquarePartials<float>(data, count, partials, native);
      break;
    case DType::kBFloat16:
      made = LaunchSquarePartials<__nv_bfloat16>(data, count, partials, native);
      break;
    case DType::kFloat16:
      made = LaunchSquarePartials<__half>(data, count, partials, native);
      break;
    default:
      return CudaResult::kInvalidValue;
  }
  if (const CudaResult result = Launched(); result != CudaResult::kSuccess) {
    return result;
  }
  AddPartials<<<1, kThreads, 0, native>>>(partials, made, sum);
  return Launched();
}

CudaResult SumInOrder(const double* values, int count, double* sum, CudaStream* stream) {
  AddInOrder<<<1, 1, 0, Native(stream)>>>(values, count, sum);
  return Launched();
}

template <typename T>
CudaResult LaunchAddParts(const void* parts, int part_count, size_t count, float scale,
                          void* output, CudaStream* stream) {
  const auto* const from = static_cast<const T*>(parts);
  auto* const to = static_cast<T*>(output);
  // If the first part is aligned and their length is a multiple of 16 bytes, every part is aligned.
  if (Aligned(parts) && Aligned(output) && count * sizeof(T) % 16 == 0) {
    AddParts<kWidth><<<NcclKernelBlocks(count, kWidth), kThreads, 0, Native(stream)>>>(
        from, part_count, count, scale, to);
  } else {
    AddParts<1><<<NcclKernelBlocks(count, 1), kThreads, 0, Native(stream)>>>(from, part_count,
                                                                             count, scale, to);
  }
  return Launched();
}

CudaResult SumPartsInOrder(const void* parts, int part_count, size_t count, DType dtype,
                           float scale, void* output, CudaStream* stream) {
  if (count == 0) {
    return CudaResult::kSuccess;  // A grid of no blocks is an error.
  }
  switch (dtype) {
    case DType::kFloat32:
      return LaunchAddParts<float>(parts, part_count, count, scale, output, stream);
    case DType::kBFloat16:
      return LaunchAddParts<__nv_bfloat16>(parts, part_count, count, scale, output, stream);
    case DType::kFloat16:
      return LaunchAddParts<__half>(parts, part_count, count, scale, output, stream);
    default:
      return CudaResult::kInvalidValue;
  }
}

template <int kLanes, typename From, typename To>
__global__ void __launch_bounds__(kThreads) Cast(const From* from, size_t count, To* to) {
  Each<kLanes>(count, [&](auto lanes, size_t i) {
    constexpr int kMine = sizeof(lanes) / sizeof(float);
    lanes = Load<kMine>(from + i);
    Store(lanes, to + i);
  });
}

template <typename From, typename To>
CudaResult LaunchCast(const void* from, void* to, size_t count, CudaStream* stream) {
  const auto* const source = static_cast<const From*>(from);
  auto* const target = static_cast<To*>(to);
  if (Aligned(from) && Aligned(to)) {
    Cast<kWidth>
        <<<NcclKernelBlocks(count, kWidth), kThreads, 0, Native(stream)>>>(source, count, target);
  } else {
    Cast<1><<<NcclKernelBlocks(count, 1), kThreads, 0, Native(stream)>>>(source, count, target);
  }
  return Launched();
}

CudaResult CastTo(const void* from, DType from_dtype, void* to, DType to_dtype, size_t count,
                  CudaStream* stream) {
  if (count == 0) {
    return CudaResult::kSuccess;
  }
  if (from_dtype == DType::kFloat32 && to_dtype == DType::kBFloat16) {
    return LaunchCast<float, __nv_bfloat16>(from, to, count, stream);
  }
  if (from_dtype == DType::kFloat32 && to_dtype == DType::kFloat16) {
    return LaunchCast<float, __half>(from, to, count, stream);
  }
  if (from_dtype == DType::kBFloat16 && to_dtype == DType::kFloat32) {
    return LaunchCast<__nv_bfloat16, float>(from, to, count, stream);
  }
  if (from_dtype == DType::kFloat16 && to_dtype == DType::kFloat32) {
    return LaunchCast<__half, float>(from, to, count, stream);
  }
  return CudaResult::kInvalidValue;
}

}  // namespace

NcclKernels CudaNcclKernels() {
  NcclKernels kernels;
  kernels.sum_of_squares = SumOfSquares;
  kernels.sum_in_order = SumInOrder;
  kernels.sum_parts_in_order = SumPartsInOrder;
  kernels.cast = CastTo;
  kernels.scratch_bytes = kPartials * sizeof(double);
  return kernels;
}

}  // namespace dtrain::comm
