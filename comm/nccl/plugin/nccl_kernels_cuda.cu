// Sum of squares of a reduced bucket and rank-ordered sums, on the comm stream.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include "comm/nccl/plugin/nccl_kernels_cuda.h"

namespace dtrain::comm {
namespace {

constexpr int kThreads = 256;
// A fixed number of partial sums, whatever the GPU: the same bits on every repeat and device.
constexpr int kPartials = 256;

__device__ float Load(const float* data, size_t index) { return data[index]; }
__device__ float Load(const __nv_bfloat16* data, size_t index) {
  return __bfloat162float(data[index]);
}
__device__ float Load(const __half* data, size_t index) { return __half2float(data[index]); }
__device__ void Store(float value, float* data, size_t index) { data[index] = value; }
__device__ void Store(float value, __nv_bfloat16* data, size_t index) {
  data[index] = __float2bfloat16_rn(value);
}
__device__ void Store(float value, __half* data, size_t index) {
  data[index] = __float2half_rn(value);
}

// The sum over the block's threads, in thread 0: a tree in shared memory.
__device__ double BlockSum(double value) {
  __shared__ double sums[kThreads];
  sums[threadIdx.x] = value;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    __syncthreads();
  }
  return sums[0];
}

template <typename T>
__global__ void SquarePartials(const T* data, size_t count, double* partials) {
  double sum = 0;
  const size_t stride = size_t{kPartials} * kThreads;
  for (size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += stride) {
    const double value = Load(data, i);
    sum += value * value;
  }
  sum = BlockSum(sum);
  if (threadIdx.x == 0) {
    partials[blockIdx.x] = sum;
  }
}

__global__ void AddPartials(const double* partials, double* sum) {
  static_assert(kPartials == kThreads);
  const double total = BlockSum(partials[threadIdx.x]);
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

template <typename T>
__global__ void AddParts(const T* parts, int part_count, size_t count, float scale, T* output) {
  const size_t stride = size_t{gridDim.x} * kThreads;
  for (size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += stride) {
    float total = Load(parts, i);
    for (int part = 1; part < part_count; ++part) {
      total = __fadd_rn(total, Load(parts, static_cast<size_t>(part) * count + i));
    }
    Store(scale * total, output, i);
  }
}

cudaStream_t Native(CudaStream* stream) { return reinterpret_cast<cudaStream_t>(stream); }
CudaResult Launched() { return static_cast<CudaResult>(cudaGetLastError()); }

CudaResult SumOfSquares(const void* data, size_t count, DType dtype, double* sum, void* scratch,
                        CudaStream* stream) {
  auto* const partials = static_cast<double*>(scratch);
  const cudaStream_t native = Native(stream);
  switch (dtype) {
    case DType::kFloat32:
      SquarePartials<<<kPartials, kThreads, 0, native>>>(static_cast<const float*>(data), count,
                                                         partials);
      break;
    case DType::kBFloat16:
      SquarePartials<<<kPartials, kThreads, 0, native>>>(static_cast<const __nv_bfloat16*>(data),
                                                         count, partials);
      break;
    case DType::kFloat16:
      SquarePartials<<<kPartials, kThreads, 0, native>>>(static_cast<const __half*>(data), count,
                                                         partials);
      break;
    default:
      return CudaResult::kInvalidValue;
  }
  if (const CudaResult result = Launched(); result != CudaResult::kSuccess) {
    return result;
  }
  AddPartials<<<1, kThreads, 0, native>>>(partials, sum);
  return Launched();
}

CudaResult SumInOrder(const double* values, int count, double* sum, CudaStream* stream) {
  AddInOrder<<<1, 1, 0, Native(stream)>>>(values, count, sum);
  return Launched();
}

template <typename T>
CudaResult LaunchAddParts(const void* parts, int part_count, size_t count, float scale,
                          void* output, CudaStream* stream) {
  const size_t blocks = (count + kThreads - 1) / kThreads;
  AddParts<<<static_cast<unsigned>(blocks < 4096 ? blocks : 4096), kThreads, 0, Native(stream)>>>(
      static_cast<const T*>(parts), part_count, count, scale, static_cast<T*>(output));
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

// Two elements a thread and step: 8 bytes of fp32 and 4 of the other type.
template <typename From, typename To>
__global__ void Cast(const From* from, size_t count, To* to) {
  const size_t stride = size_t{gridDim.x} * kThreads * 2;
  for (size_t i = (size_t{blockIdx.x} * kThreads + threadIdx.x) * 2; i < count; i += stride) {
    const float first = Load(from, i);
    if (i + 1 < count) {
      const float second = Load(from, i + 1);
      Store(second, to, i + 1);
    }
    Store(first, to, i);
  }
}

template <typename From, typename To>
CudaResult LaunchCast(const void* from, void* to, size_t count, CudaStream* stream) {
  const size_t blocks = (count + 2 * kThreads - 1) / (2 * kThreads);
  Cast<<<static_cast<unsigned>(blocks < 4096 ? blocks : 4096), kThreads, 0, Native(stream)>>>(
      static_cast<const From*>(from), count, static_cast<To*>(to));
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
