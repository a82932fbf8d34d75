// Numbers as int8 in blocks that share an fp32 scale (ZeRO++, Wang et al. 2023, arXiv 2306.10209).
//
// A block's largest magnitude becomes 127; every other element is the nearest multiple of scale =
// largest / 127, ties to even, so it is off by at most half a scale. A block with a NaN or an
// infinity has scale NaN and comes back as NaN throughout; one of zeros, or whose scale has no
// finite inverse, has scale 0 and comes back as zeros. Sources and results are fp32 or bf16, math
// is fp32. Same bits on every SIMD variant, thread count and split, but for a NaN's payload, and on
// CUDA, where a NaN is CUDA's own (cuda_table.h). Thread-safe on disjoint buffers; no alignment is
// needed, nothing is allocated.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "base/threads/parallel_for.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/flat.h"

namespace dtrain::kernels {

// How many scales `n` elements have; the last block may be short.
constexpr int64_t Int8Blocks(int64_t n, int64_t block) { return (n + block - 1) / block; }

struct QuantizeInt8Args {
  int64_t n = 0;
  int64_t block = 256;       // Elements that share a scale, at least 1.
  ConstFlat src;             // [n], fp32 or bf16.
  int8_t* values = nullptr;  // [n].
  float* scales = nullptr;   // [Int8Blocks(n, block)].
  float* error = nullptr;    // [n]: src - what DequantizeInt8 gives; null, or src.data if fp32.
};

struct DequantizeInt8Args {
  int64_t n = 0;
  int64_t block = 256;
  const int8_t* values = nullptr;
  const float* scales = nullptr;
  MutableFlat dst;          // [n], fp32 or bf16.
  bool accumulate = false;  // Adds to dst instead; in fp32, rounded once.
};

// REQUIRES: block >= 1; the dtypes above (DT_CHECK).
void QuantizeInt8Cpu(const QuantizeInt8Args& args, ParallelFor parallel_for);
void DequantizeInt8Cpu(const DequantizeInt8Args& args, ParallelFor parallel_for);

// fp32 in blocks of 256, packed as comm/compression/int8_blocks.h has them: the scales, then the
// values. They do what its QuantizeInt8 and DequantizeInt8 do, with the same bits, on the calling
// thread; `error` is null, [count], or `values`. REQUIRES: `count` is a multiple of 256.
void PackInt8Blocks(const float* values, size_t count, uint8_t* out, float* error);
void UnpackInt8Blocks(const uint8_t* packed, size_t count, float* out, bool add);

// The same on device pointers. Queue one kernel on `stream`, do not synchronise; Internal when the
// launch fails. Blocks of a multiple of 16 elements at 16-byte addresses take 16-byte accesses.
absl::Status QuantizeInt8Cuda(const QuantizeInt8Args& args, CudaStream stream);
absl::Status DequantizeInt8Cuda(const DequantizeInt8Args& args, CudaStream stream);

}  // namespace dtrain::kernels
