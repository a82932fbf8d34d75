#include <cuda_fp8.h>
#include <cuda_runtime_api.h>

#include "base/check.h"
#include "kernels/cuda/cuda_index.h"
#include "kernels/cuda/cuda_packed.cuh"
#include "kernels/cuda/cuda_reduce.cuh"
#include "kernels/quantize/fp8.h"
#include "kernels/quantize/fp8_math.h"

namespace dtrain::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kTile = kTransposeTile;
constexpr int kTileStride = kTile + 4;  // Words of neighbouring rows lie in other banks.

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
constexpr bool kFp8Instruction = true;
#else
constexpr bool kFp8Instruction = false;
#endif

// The codes of two numbers, the first in the low byte. The instruction gives every NaN the code
// 0x7f and all else as EncodeFp8.
template <Fp8Format kFormat>
__device__ uint32_t EncodePair(float first, float second) {
  if constexpr (kFp8Instruction) {
    constexpr auto kCode = kFormat == Fp8Format::kE4m3 ? __NV_E4M3 : __NV_E5M2;
    return __nv_cvt_float2_to_fp8x2(make_float2(first, second), __NV_SATFINITE, kCode);
  } else {
    const auto word = [](uint32_t x) { return x; };
    return EncodeFp8<kFormat>(first, word) | EncodeFp8<kFormat>(second, word) << 8;
  }
}
template <Fp8Format kFormat>
__device__ uint8_t Encode(float x) {
  return static_cast<uint8_t>(EncodePair<kFormat>(x, 0.0F));
}
// The codes of x times `factor`, each product rounded to fp32 first.
template <Fp8Format kFormat>
__device__ Bytes<uint8_t> EncodePacked(const Packed& x, float factor) {
  uint32_t words[kPack / 4];
#pragma unroll
  for (int word = 0; word < kPack / 4; ++word) {
    const float* const four = x.v + 4 * word;
    words[word] = EncodePair<kFormat>(four[0] * factor, four[1] * factor) |
                  EncodePair<kFormat>(four[2] * factor, four[3] * factor) << 16;
  }
  Bytes<uint8_t> codes;
  memcpy(&codes, words, sizeof(codes));
  return codes;
}
// The numbers of two codes, x of the low byte. The instruction gives fp16, which has every number
// of both formats, and makes every NaN the same one.
template <Fp8Format kFormat>
__device__ float2 DecodePair(uint16_t codes) {
  if constexpr (kFp8Instruction) {
    constexpr auto kCode = kFormat == Fp8Format::kE4m3 ? __NV_E4M3 : __NV_E5M2;
    return __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(codes, kCode)));
  } else {
    const auto same = [](auto x) { return x; };
    return make_float2(DecodeFp8<kFormat>(uint32_t{codes} & 0xffU, same, same),
                       DecodeFp8<kFormat>(uint32_t{codes} >> 8, same, same));
  }
}
template <Fp8Format kFormat, int kCount>
__device__ Floats<kCount> DecodePacked(const Bytes<uint8_t, kCount>& codes, float factor) {
  uint16_t pairs[kCount / 2];
  memcpy(pairs, &codes, sizeof(codes));
  Floats<kCount> x;
#pragma unroll
  for (int pair = 0; pair < kCount / 2; ++pair) {
    const float2 two = DecodePair<kFormat>(pairs[pair]);
    x.v[2 * pair] = two.x * factor;
    x.v[2 * pair + 1] = two.y * factor;
  }
  return x;
}

constexpr int kWarps = kThreads / 32;

// The largest magnitude of the block into *amax, by one atomic operation: a maximum of integers,
// the same in any order. All threads of the block call it.
__device__ void RaiseAmax(uint32_t most, float* amax) {
  __shared__ uint32_t scratch[kWarps];
  most = BlockMaxWord(most, scratch);
  if (threadIdx.x == 0) {
    atomicMax(reinterpret_cast<unsigned*>(amax), most);
  }
}

__device__ inline uint32_t Magnitude(float x) { return __float_as_uint(x) & 0x7fffffffU; }
__device__ inline uint32_t LargestOf(const Packed& x) {
  uint32_t most = 0;
#pragma unroll
  for (int lane = 0; lane < kPack; ++lane) {
    most = Max(most, Magnitude(x.v[lane]));
  }
  return most;
}

template <Fp8Format kFormat, class T, bool kWide, bool kAmax>
__global__ void __launch_bounds__(kThreads) ToKernel(CastToFp8Args args, const float* scale) {
  const int64_t i = GridElement(blockIdx.x, threadIdx.x, kThreads, kWide ? kPack : 1);
  uint32_t most = 0;
  if (i < args.n) {
    const auto* const src = static_cast<const T*>(args.src.data);
    const float factor = *scale;
    if constexpr (kWide) {
      const Packed x = LoadPacked(src + i);
      StoreBytes(args.dst + i, EncodePacked<kFormat>(x, factor));
      most = LargestOf(x);
    } else {
      const float x = Widen(src[i]);
      args.dst[i] = Encode<kFormat>(x * factor);
      most = Magnitude(x);
    }
  }
  if constexpr (kAmax) {
    RaiseAmax(most, args.amax);
  }
}

template <Fp8Format kFormat, class T, bool kWide>
__global__ void __launch_bounds__(kThreads) FromKernel(CastFromFp8Args args, const float* scale) {
  constexpr int kEach = kPackInto<T>;
  const int64_t i = GridElement(blockIdx.x, threadIdx.x, kThreads, kWide ? kEach : 1);
  if (i >= args.n) {
    return;
  }
  auto* const dst = static_cast<T*>(args.dst.data);
  const float factor = *scale;
  if constexpr (kWide) {
    StorePacked(dst + i, DecodePacked<kFormat>(LoadBytes<kEach>(args.src + i), factor));
  } else {
    dst[i] = Narrow<T>(DecodePair<kFormat>(args.src[i]).x * factor);
  }
}

// The largest magnitude of what a thread of the grid takes of src [n].
template <class T, bool kWide>
__device__ uint32_t LargestOfThread(int64_t n, const T* src) {
  const int64_t i = GridElement(blockIdx.x, threadIdx.x, kThreads, kWide ? kPack : 1);
  uint32_t most = 0;
  if (i < n) {
    if constexpr (kWide) {
      most = LargestOf(LoadPacked(src + i));
    } else {
      most = Magnitude(Widen(src[i]));
    }
  }
  return most;
}

// The block that comes last makes the scale, and leaves the progress as it was found.
template <class T, bool kWide>
__global__ void __launch_bounds__(kThreads) ScaleKernel(Fp8ScaleArgs args) {
  __shared__ uint32_t scratch[kWarps];
  const auto* const src = static_cast<const T*>(args.src.data);
  const uint32_t most = BlockMaxWord(LargestOfThread<T, kWide>(args.n, src), scratch);
  if (threadIdx.x != 0) {
    return;
  }
  atomicMax(&args.progress->most, most);
  __threadfence();  // A block that reads the count of finished blocks must also see their maxima.
  if (atomicAdd(&args.progress->blocks, 1U) != gridDim.x - 1) {
    return;
  }
  __threadfence();
  const float amax = __uint_as_float(atomicExch(&args.progress->most, 0U));
  *args.scale = Fp8Scale(amax, args.format);
  *args.inverse = Fp8Inverse(amax, args.format);
  args.progress->blocks = 0;
}

// The largest word over each kTeam neighbouring threads of a warp, in all of them, or over the
// block where kTeam is 0. All threads of the block call it; `scratch` as BlockMaxWord's.
template <int kTeam>
__device__ uint32_t TeamMaxWord(uint32_t word, uint32_t* scratch) {
  if constexpr (kTeam == 0) {
    return BlockMaxWord(word, scratch);
  } else if constexpr (kTeam == 32) {
    return WarpMax(word);
  } else {
#pragma unroll
    for (int distance = kTeam / 2; distance > 0; distance /= 2) {
      word = Max(word, __shfl_xor_sync(0xffffffffU, word, distance));
    }
    return word;
  }
}

// A team of kTeam threads for a row, or a block where that is 0. It reads the row twice, the second
// time out of a cache.
template <Fp8Format kFormat, class T, bool kWide, int kTeam>
__global__ void __launch_bounds__(kThreads) RowsToKernel(RowsToFp8Args args) {
  __shared__ uint32_t largest[kWarps];
  constexpr int kLanes = kWide ? kPack : 1;
  constexpr int kAcross = kTeam > 0 ? kTeam : kThreads;
  const int64_t row = GridElement(blockIdx.x, threadIdx.y, kThreads / kAcross, 1);
  const int64_t columns = row < args.rows ? args.columns : 0;  // Every thread votes below.
  const int64_t start = row * args.columns;
  const auto* const src = static_cast<const T*>(args.src.data) + start;
  const RowStride mine = RowStrideOf(threadIdx.x, kAcross, kLanes);
  uint32_t most = 0;
  for (int64_t i = mine.first; i < columns; i += mine.step) {
    if constexpr (kWide) {
      most = Max(most, LargestOf(LoadPacked(src + i)));
    } else {
      most = Max(most, Magnitude(Widen(src[i])));
    }
  }
  most = TeamMaxWord<kTeam>(most, largest);
  const float amax = __uint_as_float(most);
  const float scale = Fp8Scale(amax, kFormat);
  uint8_t* const dst = args.dst + start;
  for (int64_t i = mine.first; i < columns; i += mine.step) {
    if constexpr (kWide) {
      StoreBytes(dst + i, EncodePacked<kFormat>(LoadPacked(src + i), scale));
    } else {
      dst[i] = Encode<kFormat>(Widen(src[i]) * scale);
    }
  }
  if (threadIdx.x == 0 && row < args.rows) {
    args.inverse[row] = Fp8Inverse(amax, kFormat);
  }
}

// A block for a tile: four threads a row cast sixteen columns each into shared memory, then four
// threads a column write sixteen rows each.
template <Fp8Format kFormat, class T, bool kWide>
__global__ void __launch_bounds__(kThreads)
    TransposeKernel(TransposeToFp8Args args, const float* scale) {
  __shared__ __align__(16) uint8_t tile[kTile][kTileStride];
  const TileSpan within = TileSource(0, 0, static_cast<int>(threadIdx.x));
  const int major = static_cast<int>(within.row);
  const int minor = static_cast<int>(within.column);
  const auto* const src = static_cast<const T*>(args.src.data);
  const float factor = *scale;
  const int64_t down = TileDown(blockIdx.y, blockIdx.z, gridDim.y);
  const TileSpan source = TileSource(down, blockIdx.x, static_cast<int>(threadIdx.x));
  const int64_t row = source.row;
  const int64_t column = source.column;
  if constexpr (kWide) {
    if (row < args.rows && column < args.columns) {
      const int64_t at = row * args.columns + column;
      const Bytes<uint8_t> codes = EncodePacked<kFormat>(LoadPacked(src + at), factor);
      if (args.dst != nullptr) {
        StoreBytes(args.dst + at, codes);
      }
      uint32_t words[4];
      memcpy(words, &codes, sizeof(codes));
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        *reinterpret_cast<uint32_t*>(&tile[major][minor + 4 * word]) = words[word];
      }
    }
  } else {
    for (int lane = 0; lane < kPack; ++lane) {
      if (row < args.rows && column + lane < args.columns) {
        const int64_t at = row * args.columns + column + lane;
        const uint8_t code = Encode<kFormat>(Widen(src[at]) * factor);
        if (args.dst != nullptr) {
          args.dst[at] = code;
        }
        tile[major][minor + lane] = code;
      }
    }
  }
  __syncthreads();
  const TileSpan result = TileResult(down, blockIdx.x, static_cast<int>(threadIdx.x));
  const int64_t out_row = result.row;  // A column of the source.
  const int64_t out_column = result.column;
  uint8_t* const out = args.transposed + out_row * args.rows + out_column;
  if constexpr (kWide) {
    if (out_row < args.columns && out_column < args.rows) {
      Bytes<uint8_t> codes;
#pragma unroll
      for (int lane = 0; lane < kPack; ++lane) {
        codes.v[lane] = tile[minor + lane][major];
      }
      StoreBytes(out, codes);
    }
  } else {
    for (int lane = 0; lane < kPack; ++lane) {
      if (out_row < args.columns && out_column + lane < args.rows) {
        out[lane] = tile[minor + lane][major];
      }
    }
  }
}

// Calls function(format, T{}) with both as types.
template <Fp8Format kFormat>
struct Format {
  static constexpr Fp8Format kValue = kFormat;
};
template <class Function>
void WithTypes(Fp8Format format, DType dtype, Function function) {
  DT_CHECK(dtype == DType::kFloat32 || dtype == DType::kBFloat16)
      << " FP8 is cast from and to fp32 and bf16, not " << DTypeName(dtype);
  const auto with_format = [&](auto type) {
    if (format == Fp8Format::kE4m3) {
      function(Format<Fp8Format::kE4m3>{}, type);
    } else {
      function(Format<Fp8Format::kE5m2>{}, type);
    }
  };
  if (dtype == DType::kFloat32) {
    with_format(float{});
  } else {
    with_format(BFloat16{});
  }
}

}  // namespace

absl::Status CastToFp8Cuda(const CastToFp8Args& args, const float* scale, CudaStream stream) {
  RequireStream(stream);
  if (args.amax != nullptr) {
    cudaMemsetAsync(args.amax, 0, sizeof(float), stream);
  }
  if (args.n == 0) {
    return LaunchStatus("cast to FP8");
  }
  const bool wide = args.n % kPack == 0 && Aligned16(args.src.data) && Aligned16(args.dst);
  const unsigned blocks = GridBlocks(args.n, kThreads, wide ? kPack : 1);
  WithTypes(args.format, args.src.dtype, [&](auto format, auto type) {
    constexpr Fp8Format kFormat = decltype(format)::kValue;
    using T = decltype(type);
    if (wide && args.amax != nullptr) {
      ToKernel<kFormat, T, true, true><<<blocks, kThreads, 0, stream>>>(args, scale);
    } else if (wide) {
      ToKernel<kFormat, T, true, false><<<blocks, kThreads, 0, stream>>>(args, scale);
    } else if (args.amax != nullptr) {
      ToKernel<kFormat, T, false, true><<<blocks, kThreads, 0, stream>>>(args, scale);
    } else {
      ToKernel<kFormat, T, false, false><<<blocks, kThreads, 0, stream>>>(args, scale);
    }
  });
  return LaunchStatus("cast to FP8");
}

absl::Status CastFromFp8Cuda(const CastFromFp8Args& args, const float* scale, CudaStream stream) {
  RequireStream(stream);
  if (args.n == 0) {
    return absl::OkStatus();
  }
  const bool wide = args.n % kPack == 0 && Aligned16(args.dst.data) && Aligned16(args.src);
  WithTypes(args.format, args.dst.dtype, [&](auto format, auto type) {
    constexpr Fp8Format kFormat = decltype(format)::kValue;
    using T = decltype(type);
    const unsigned blocks = GridBlocks(args.n, kThreads, wide ? kPackInto<T> : 1);
    if (wide) {
      FromKernel<kFormat, T, true><<<blocks, kThreads, 0, stream>>>(args, scale);
    } else {
      FromKernel<kFormat, T, false><<<blocks, kThreads, 0, stream>>>(args, scale);
    }
  });
  return LaunchStatus("cast from FP8");
}

absl::Status TransposeToFp8Cuda(const TransposeToFp8Args& args, const float* scale,
                                CudaStream stream) {
  RequireStream(stream);
  if (args.rows == 0 || args.columns == 0) {
    return absl::OkStatus();
  }
  const bool wide = args.rows % kPack == 0 && args.columns % kPack == 0 &&
                    Aligned16(args.src.data) && Aligned16(args.dst, args.transposed);
  const TileGrid tiles = GridOfTiles(TransposeTiles(args.rows));
  const dim3 grid(static_cast<unsigned>(TransposeTiles(args.columns)),
                  static_cast<unsigned>(tiles.y), static_cast<unsigned>(tiles.z));
  WithTypes(args.format, args.src.dtype, [&](auto format, auto type) {
    constexpr Fp8Format kFormat = decltype(format)::kValue;
    using T = decltype(type);
    if (wide) {
      TransposeKernel<kFormat, T, true><<<grid, kThreads, 0, stream>>>(args, scale);
    } else {
      TransposeKernel<kFormat, T, false><<<grid, kThreads, 0, stream>>>(args, scale);
    }
  });
  return LaunchStatus("transpose to FP8");
}

absl::Status Fp8ScaleCuda(const Fp8ScaleArgs& args, CudaStream stream) {
  RequireStream(stream);
  DT_CHECK(args.progress != nullptr) << " the blocks of an FP8 scale have no memory to share";
  const bool wide = args.n % kPack == 0 && Aligned16(args.src.data);
  const unsigned blocks = args.n == 0 ? 1 : GridBlocks(args.n, kThreads, wide ? kPack : 1);
  WithTypes(args.format, args.src.dtype, [&](auto, auto type) {
    using T = decltype(type);
    if (wide) {
      ScaleKernel<T, true><<<blocks, kThreads, 0, stream>>>(args);
    } else {
      ScaleKernel<T, false><<<blocks, kThreads, 0, stream>>>(args);
    }
  });
  return LaunchStatus("scale of FP8");
}

namespace {

template <Fp8Format kFormat, class T, bool kWide, int kTeam>
void LaunchRowsTo(const RowsToFp8Args& args, CudaStream stream) {
  constexpr int kAcross = kTeam > 0 ? kTeam : kThreads;
  const dim3 threads(kAcross, kThreads / kAcross);
  const unsigned blocks = GridBlocks(args.rows, threads.y, 1);
  RowsToKernel<kFormat, T, kWide, kTeam><<<blocks, threads, 0, stream>>>(args);
}

}  // namespace

absl::Status RowsToFp8Cuda(const RowsToFp8Args& args, CudaStream stream) {
  RequireStream(stream);
  if (args.rows == 0) {
    return absl::OkStatus();
  }
  const bool wide = args.columns % kPack == 0 && Aligned16(args.src.data) && Aligned16(args.dst);
  const int team = wide ? RowTeamOf(args.columns / kPack) : 0;
  WithTypes(args.format, args.src.dtype, [&](auto format, auto type) {
    constexpr Fp8Format kFormat = decltype(format)::kValue;
    using T = decltype(type);
    if (!wide) {
      LaunchRowsTo<kFormat, T, false, 0>(args, stream);
    } else if (team == 8) {
      LaunchRowsTo<kFormat, T, true, 8>(args, stream);
    } else if (team == 32) {
      LaunchRowsTo<kFormat, T, true, 32>(args, stream);
    } else {
      LaunchRowsTo<kFormat, T, true, 0>(args, stream);
    }
  });
  return LaunchStatus("rows to FP8");
}

}  // namespace dtrain::kernels
