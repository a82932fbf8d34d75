#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "kernels/quantize/fp8.h"
#include "kernels/simd/simd_table.h"
#include "kernels/write_mode.h"

namespace dtrain::kernels {
namespace {

StateType Fp8SourceOf(DType dtype) {
  DT_CHECK(dtype == DType::kFloat32 || dtype == DType::kBFloat16)
      << " FP8 is cast from and to fp32 and bf16, not " << DTypeName(dtype);
  return dtype == DType::kFloat32 ? kStateF32 : kStateBf16;
}

const char* At(ConstFlat flat, int64_t element) {
  return static_cast<const char*>(flat.data) +
         element * static_cast<int64_t>(DTypeBytes(flat.dtype));
}

// The largest of what threads find, in any order.
class Largest {
 public:
  void Add(uint32_t bits) {
    uint32_t seen = bits_.load(std::memory_order_relaxed);
    while (bits > seen && !bits_.compare_exchange_weak(seen, bits, std::memory_order_relaxed)) {
    }
  }
  float value() const { return std::bit_cast<float>(bits_.load(std::memory_order_relaxed)); }

 private:
  std::atomic<uint32_t> bits_{0};
};

constexpr int64_t kTile = 64;

}  // namespace

void CastToFp8Cpu(const CastToFp8Args& args, float scale, ParallelFor parallel_for) {
  const auto loop =
      ActiveTable().fp8.to[static_cast<int>(args.format)][Fp8SourceOf(args.src.dtype)];
  Largest largest;
  parallel_for(args.n, kElementGrain, [&](int64_t begin, int64_t end) {
    largest.Add(loop(end - begin, At(args.src, begin), args.dst + begin, scale));
  });
  if (args.amax != nullptr) {
    *args.amax = largest.value();
  }
}

void CastFromFp8Cpu(const CastFromFp8Args& args, float scale, ParallelFor parallel_for) {
  const auto loop =
      ActiveTable().fp8.from[static_cast<int>(args.format)][Fp8SourceOf(args.dst.dtype)];
  const auto element = static_cast<int64_t>(DTypeBytes(args.dst.dtype));
  const Write write = WriteFor(args.n * element, false);
  parallel_for(args.n, kElementGrain, [&](int64_t begin, int64_t end) {
    loop(end - begin, args.src + begin, static_cast<char*>(args.dst.data) + begin * element, scale,
         write);
  });
}

// Works by tiles that stay in the innermost cache: rows are cast into one, columns are read from
// it.
void TransposeToFp8Cpu(const TransposeToFp8Args& args, float scale, ParallelFor parallel_for) {
  const auto loop =
      ActiveTable().fp8.to[static_cast<int>(args.format)][Fp8SourceOf(args.src.dtype)];
  const int64_t tiles_down = (args.rows + kTile - 1) / kTile;
  const int64_t tiles_across = (args.columns + kTile - 1) / kTile;
  parallel_for(tiles_down * tiles_across, kElementGrain / (kTile * kTile),
               [&](int64_t begin, int64_t end) {
                 uint8_t tile[kTile][kTile];
                 for (int64_t t = begin; t < end; ++t) {
                   const int64_t top = t / tiles_across * kTile;
                   const int64_t left = t % tiles_across * kTile;
                   const int64_t height = std::min(kTile, args.rows - top);
                   const int64_t width = std::min(kTile, args.columns - left);
                   for (int64_t r = 0; r < height; ++r) {
                     const int64_t first = (top + r) * args.columns + left;
                     loop(width, At(args.src, first), tile[r], scale);
                     if (args.dst != nullptr) {
                       std::memcpy(args.dst + first, tile[r], static_cast<size_t>(width));
                     }
                   }
                   for (int64_t c = 0; c < width; ++c) {
                     uint8_t* const out = args.transposed + (left + c) * args.rows + top;
                     for (int64_t r = 0; r < height; ++r) {
                       out[r] = tile[r][c];
                     }
                   }
                 }
               });
}

void RowsToFp8Cpu(const RowsToFp8Args& args, ParallelFor parallel_for) {
  const auto amax = ActiveTable().fp8.amax[Fp8SourceOf(args.src.dtype)];
  const auto loop =
      ActiveTable().fp8.to[static_cast<int>(args.format)][Fp8SourceOf(args.src.dtype)];
  const int64_t grain = std::max(int64_t{1}, kElementGrain / std::max(int64_t{1}, args.columns));
  parallel_for(args.rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const char* const src = At(args.src, row * args.columns);
      const auto most = std::bit_cast<float>(amax(args.columns, src));
      loop(args.columns, src, args.dst + row * args.columns, Fp8Scale(most, args.format));
      args.inverse[row] = Fp8Inverse(most, args.format);
    }
  });
}

void Fp8ScaleCpu(const Fp8ScaleArgs& args, ParallelFor parallel_for) {
  const float amax = AmaxCpu(args.n, args.src, parallel_for);
  *args.scale = Fp8Scale(amax, args.format);
  *args.inverse = Fp8Inverse(amax, args.format);
}

float AmaxCpu(int64_t n, ConstFlat src, ParallelFor parallel_for) {
  const auto loop = ActiveTable().fp8.amax[Fp8SourceOf(src.dtype)];
  Largest largest;
  parallel_for(n, kElementGrain,
               [&](int64_t begin, int64_t end) { largest.Add(loop(end - begin, At(src, begin))); });
  return largest.value();
}

}  // namespace dtrain::kernels
