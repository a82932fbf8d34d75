#include <cuda_runtime_api.h>

#include "base/check.h"
#include "kernels/cuda/cuda_vector.cuh"
#include "kernels/flat.h"

namespace dtrain::kernels {
namespace {

template <class From, class To>
struct ScaleBody {
  const From* src;
  To* dst;
  float scale;

  template <int kLanes>
  __device__ void Run(int64_t i) const {
    Lanes<kLanes> x = LoadLanes<kLanes>(src + i);
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      x.v[lane] *= scale;
    }
    StoreLanes(dst + i, x);
  }
};

template <class From, class To>
struct AccumulateBody {
  const From* src;
  To* dst;
  float scale;  // Unused; the bodies are made alike.

  template <int kLanes>
  __device__ void Run(int64_t i) const {
    const Lanes<kLanes> x = LoadLanes<kLanes>(src + i);
    Lanes<kLanes> sum = LoadLanes<kLanes>(dst + i);
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      sum.v[lane] += x.v[lane];
    }
    StoreLanes(dst + i, sum);
  }
};

struct RoundBody {
  const float* src;
  float* rounded;

  template <int kLanes>
  __device__ void Run(int64_t i) const {
    Lanes<kLanes> x = LoadLanes<kLanes>(src + i);
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      x.v[lane] = Widen(Narrow<BFloat16>(x.v[lane]));
    }
    StoreLanes(rounded + i, x);
  }
};

struct RoundAndKeepBody {
  const float* src;
  float* rounded;
  BFloat16* kept;

  template <int kLanes>
  __device__ void Run(int64_t i) const {
    StoreLanes(rounded + i, StoreRounded(kept + i, LoadLanes<kLanes>(src + i)));
  }
};

template <class To>
struct FillBody {
  To* dst;
  float value;

  template <int kLanes>
  __device__ void Run(int64_t i) const {
    Lanes<kLanes> x;
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      x.v[lane] = value;
    }
    StoreLanes(dst + i, x);
  }
};

// Calls function(T{}) with the type of `dtype`.
template <class Function>
absl::Status WithType(DType dtype, Function function) {
  switch (dtype) {
    case DType::kFloat32:
      return function(float{});
    case DType::kBFloat16:
      return function(BFloat16{});
    case DType::kFloat16:
      return function(Float16{});
    default:
      DT_CHECK(false) << " flat operations take fp32, bf16 and fp16, not " << DTypeName(dtype);
      return absl::OkStatus();
  }
}

template <template <class, class> class Body>
absl::Status Launch(const char* name, int64_t n, ConstFlat src, MutableFlat dst, float scale,
                    CudaStream stream) {
  const bool aligned = Aligned16(src.data, dst.data);
  return WithType(src.dtype, [&](auto from) {
    return WithType(dst.dtype, [&](auto to) {
      using From = decltype(from);
      using To = decltype(to);
      const Body<From, To> body{static_cast<const From*>(src.data), static_cast<To*>(dst.data),
                                scale};
      return LaunchElementwise(name, n, aligned, body, stream);
    });
  });
}

}  // namespace

absl::Status CopyCuda(int64_t n, ConstFlat src, MutableFlat dst, CudaStream stream) {
  if (src.dtype != dst.dtype) {
    return Launch<ScaleBody>("flat copy", n, src, dst, 1.0F, stream);
  }
  RequireStream(stream);
  cudaMemcpyAsync(dst.data, src.data, static_cast<size_t>(n) * DTypeBytes(src.dtype),
                  cudaMemcpyDefault, stream);  // Either may be page-locked memory of the host.
  return LaunchStatus("flat copy");
}

absl::Status ScaleCuda(int64_t n, ConstFlat src, MutableFlat dst, float scale, CudaStream stream) {
  return Launch<ScaleBody>("flat scale", n, src, dst, scale, stream);
}

absl::Status AccumulateCuda(int64_t n, ConstFlat src, MutableFlat dst, CudaStream stream) {
  return Launch<AccumulateBody>("flat accumulate", n, src, dst, 1.0F, stream);
}

absl::Status RoundToBf16Cuda(int64_t n, const float* src, float* rounded, BFloat16* kept,
                             CudaStream stream) {
  const bool aligned = Aligned16(src, rounded, kept);
  if (kept == nullptr) {
    return LaunchElementwise("flat round", n, aligned, RoundBody{src, rounded}, stream);
  }
  return LaunchElementwise("flat round", n, aligned, RoundAndKeepBody{src, rounded, kept}, stream);
}

absl::Status FillCuda(int64_t n, float value, MutableFlat dst, CudaStream stream) {
  return WithType(dst.dtype, [&](auto to) {
    using To = decltype(to);
    return LaunchElementwise("flat fill", n, Aligned16(dst.data),
                             FillBody<To>{static_cast<To*>(dst.data), value}, stream);
  });
}

}  // namespace dtrain::kernels
