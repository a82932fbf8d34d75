#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "kernels/flat.h"
#include "kernels/simd/simd_table.h"
#include "kernels/write_mode.h"

namespace dtrain::kernels {
namespace {

FlatDType IndexOf(DType dtype) {
  DT_CHECK(dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16)
      << " flat operations take fp32, bf16 and fp16, not " << DTypeName(dtype);
  if (dtype == DType::kFloat32) {
    return kFlatF32;
  }
  return dtype == DType::kBFloat16 ? kFlatBf16 : kFlatF16;
}

template <class Flat>
auto At(Flat flat, int64_t element) {
  using Byte = std::conditional_t<std::is_same_v<Flat, ConstFlat>, const char, char>;
  return static_cast<Byte*>(flat.data) + element * static_cast<int64_t>(DTypeBytes(flat.dtype));
}

int64_t Bytes(int64_t n, DType dtype) { return n * static_cast<int64_t>(DTypeBytes(dtype)); }

void Convert(int64_t n, ConstFlat src, MutableFlat dst, float scale, ConvertLoop loop, Write write,
             ParallelFor parallel_for) {
  parallel_for(n, kElementGrain, [&](int64_t begin, int64_t end) {
    loop(end - begin, At(src, begin), At(dst, begin), scale, write);
  });
}

}  // namespace

void CopyCpu(int64_t n, ConstFlat src, MutableFlat dst, ParallelFor parallel_for) {
  if (src.dtype != dst.dtype) {
    ScaleCpu(n, src, dst, 1.0F, parallel_for);
    return;
  }
  if (src.data == dst.data) {
    return;
  }
  // memcpy does so by itself only where one thread's part is most of the last-level cache, which
  // can be hundreds of MiB.
  const bool past = WriteFor(Bytes(n, dst.dtype), false) == Write::kStream;
  parallel_for(n, kElementGrain, [&](int64_t begin, int64_t end) {
    const int64_t bytes = Bytes(end - begin, src.dtype);
    if (past) {
      ActiveTable().copy_past_caches(bytes, At(src, begin), At(dst, begin));
    } else {
      std::memcpy(At(dst, begin), At(src, begin), static_cast<size_t>(bytes));
    }
  });
}

void ScaleCpu(int64_t n, ConstFlat src, MutableFlat dst, float scale, ParallelFor parallel_for) {
  const ConvertLoop loop = ActiveTable().scale[IndexOf(src.dtype)][IndexOf(dst.dtype)];
  Convert(n, src, dst, scale, loop, WriteFor(Bytes(n, dst.dtype), src.data == dst.data),
          parallel_for);
}

void AccumulateCpu(int64_t n, ConstFlat src, MutableFlat dst, ParallelFor parallel_for) {
  const ConvertLoop loop = ActiveTable().accumulate[IndexOf(src.dtype)][IndexOf(dst.dtype)];
  Convert(n, src, dst, 1.0F, loop, Write::kCached, parallel_for);
}

// Works in chunks that the first cache holds, so that each number is read from memory once.
void RoundToBf16Cpu(int64_t n, const float* src, float* rounded, BFloat16* kept,
                    ParallelFor parallel_for) {
  constexpr int64_t kChunk = 4096;
  const ConvertLoop narrow = ActiveTable().scale[kFlatF32][kFlatBf16];
  const ConvertLoop widen = ActiveTable().scale[kFlatBf16][kFlatF32];
  parallel_for(n, kElementGrain, [&](int64_t begin, int64_t end) {
    std::array<BFloat16, kChunk> own;
    for (; begin < end; begin += kChunk) {
      const int64_t count = std::min(kChunk, end - begin);
      BFloat16* const to = kept == nullptr ? own.data() : kept + begin;
      narrow(count, src + begin, to, 1.0F, Write::kCached);
      widen(count, to, rounded + begin, 1.0F, Write::kCached);
    }
  });
}

void FillCpu(int64_t n, float value, MutableFlat dst, ParallelFor parallel_for) {
  const auto loop = ActiveTable().fill[IndexOf(dst.dtype)];
  const Write write = WriteFor(Bytes(n, dst.dtype), false);
  parallel_for(n, kElementGrain, [&](int64_t begin, int64_t end) {
    loop(end - begin, value, At(dst, begin), write);
  });
}

}  // namespace dtrain::kernels
