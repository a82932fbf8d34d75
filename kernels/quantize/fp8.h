// Casts to and from 8-bit floating point with a scale, the largest magnitude, and the transpose
// that an FP8 GEMM wants of its second factor.
//
// Formats (Micikevicius et al. 2022, arXiv 2209.05433): e4m3 has a sign, 4 exponent and 3 mantissa
// bits, largest 448, no infinity, NaN 0x7f; e5m2 has 5 and 2, largest 57344, infinity 0x7c, NaN
// above. A cast rounds to nearest, ties to even, and saturates: what lies beyond the largest value,
// infinity too, becomes the largest value; NaN stays NaN (0x7f with its sign). Sources and results
// are fp32 or bf16. Same bits on every SIMD variant, thread count, split and on CUDA, where a NaN
// is CUDA's own: the code 0x7f without its sign, or cuda_table.h's number. Thread-safe on disjoint
// buffers; no alignment is needed, nothing is allocated.
#pragma once

#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "base/threads/parallel_for.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/flat.h"
#include "kernels/host_device.h"

namespace dtrain::kernels {

enum class Fp8Format : uint8_t { kE4m3, kE5m2 };

DT_HOST_DEVICE constexpr float Fp8Largest(Fp8Format format) {
  return format == Fp8Format::kE4m3 ? 448.0F : 57344.0F;
}

constexpr float kFp8ScaleMax = std::numeric_limits<float>::max();

// The factor before the cast, by which `amax` becomes the largest value. 1 where amax is 0
// or not finite, or so small that the factor would not be.
DT_HOST_DEVICE constexpr float Fp8Scale(float amax, Fp8Format format) {
  const float scale = Fp8Largest(format) / amax;
  return amax > 0 && scale > 0 && scale <= kFp8ScaleMax ? scale : 1;
}
// The factor that takes the codes back. NaN where amax is not finite, since casts saturate and
// nothing else would tell.
DT_HOST_DEVICE constexpr float Fp8Inverse(float amax, Fp8Format format) {
  return 1 / Fp8Scale(amax, format) + amax * 0;
}

// dst = fp8(src * scale).
struct CastToFp8Args {
  int64_t n = 0;
  Fp8Format format = Fp8Format::kE4m3;
  ConstFlat src;           // [n], fp32 or bf16.
  uint8_t* dst = nullptr;  // [n].
  float* amax = nullptr;   // Gets the largest |src|, as AmaxCpu; null: not wanted.
};
void CastToFp8Cpu(const CastToFp8Args& args, float scale, ParallelFor parallel_for);

// dst = src * scale, rounded once.
struct CastFromFp8Args {
  int64_t n = 0;
  Fp8Format format = Fp8Format::kE4m3;
  const uint8_t* src = nullptr;  // [n].
  MutableFlat dst;               // [n], fp32 or bf16.
};
void CastFromFp8Cpu(const CastFromFp8Args& args, float scale, ParallelFor parallel_for);

// dst = fp8(src * scale), and transposed = its transpose, of a matrix src [rows, columns].
struct TransposeToFp8Args {
  int64_t rows = 0;
  int64_t columns = 0;
  Fp8Format format = Fp8Format::kE4m3;
  ConstFlat src;                  // [rows, columns], fp32 or bf16.
  uint8_t* dst = nullptr;         // [rows, columns]; null: not wanted.
  uint8_t* transposed = nullptr;  // [columns, rows].
};
void TransposeToFp8Cpu(const TransposeToFp8Args& args, float scale, ParallelFor parallel_for);

// A matrix src [rows, columns] by scales of its rows: row r is dst = fp8(src * Fp8Scale(m)) and
// inverse[r] = Fp8Inverse(m), of the row's largest magnitude m. REQUIRES: columns > 0.
struct RowsToFp8Args {
  int64_t rows = 0;
  int64_t columns = 0;
  Fp8Format format = Fp8Format::kE4m3;
  ConstFlat src;             // [rows, columns], fp32 or bf16.
  uint8_t* dst = nullptr;    // [rows, columns].
  float* inverse = nullptr;  // [rows].
};
void RowsToFp8Cpu(const RowsToFp8Args& args, ParallelFor parallel_for);

// The largest magnitude of src [n], fp32 or bf16; NaN if there is one; 0 of nothing.
float AmaxCpu(int64_t n, ConstFlat src, ParallelFor parallel_for);

// The blocks of one Fp8ScaleCuda share this: zeros before its first launch, and again behind each.
// Launches with the same memory must follow each other on one stream.
struct Fp8ScaleProgress {
  uint32_t most = 0;    // Bits of the largest magnitude so far.
  uint32_t blocks = 0;  // How many have added theirs.
};

// The scale of a whole tensor src [n], fp32 or bf16: Fp8Scale and Fp8Inverse of its AmaxCpu.
struct Fp8ScaleArgs {
  int64_t n = 0;
  Fp8Format format = Fp8Format::kE4m3;
  ConstFlat src;
  float* scale = nullptr;
  float* inverse = nullptr;
  Fp8ScaleProgress* progress = nullptr;  // Device memory; unused on the host.
};
void Fp8ScaleCpu(const Fp8ScaleArgs& args, ParallelFor parallel_for);

// The same on device pointers. `scale` and *amax are device memory; `scale` is read when the kernel
// runs, so that a CUDA graph may hold it. Queue kernels on `stream`, do not synchronise;
// Internal when a launch fails. Fp8ScaleCuda is one launch.
absl::Status CastToFp8Cuda(const CastToFp8Args& args, const float* scale, CudaStream stream);
absl::Status CastFromFp8Cuda(const CastFromFp8Args& args, const float* scale, CudaStream stream);
absl::Status TransposeToFp8Cuda(const TransposeToFp8Args& args, const float* scale,
                                CudaStream stream);
absl::Status Fp8ScaleCuda(const Fp8ScaleArgs& args, CudaStream stream);
absl::Status RowsToFp8Cuda(const RowsToFp8Args& args, CudaStream stream);

}  // namespace dtrain::kernels
