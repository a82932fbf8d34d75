#include "runtime/gradients/packed_blocks.h"

#include <array>

#include "base/check.h"
#include "base/threads/parallel_for.h"
#include "comm/compression/int8_blocks.h"
#include "kernels/quantize/int8_blocks.h"
#include "runtime/model/torch_pool.h"

namespace dtrain {
namespace {

constexpr size_t kChunk = static_cast<size_t>(kPackedChunk);
constexpr size_t kChunkBytes = comm::Int8Bytes(kChunk);
constexpr int64_t kGrain = 16;  // Chunks.
static_assert(kChunk % comm::kInt8Block == 0);

using ChunkFloats = std::array<float, kChunk>;

// Calls body(chunk) for all chunks of `elements`, on several threads.
template <class Body>
void ForChunks(int64_t elements, const Body& body) {
  DT_CHECK_EQ(elements % kPackedChunk, 0);
  TorchParallelFor(elements / kPackedChunk, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      body(static_cast<size_t>(chunk));
    }
  });
}

const uint8_t* PackedChunk(const std::byte* packed, size_t chunk) {
  return reinterpret_cast<const uint8_t*>(packed) + chunk * kChunkBytes;
}

}  // namespace

int64_t PackedBytes(int64_t elements) {
  return elements / kPackedChunk * static_cast<int64_t>(kChunkBytes);
}

void PackInt8(kernels::ConstFlat from, int64_t elements, std::byte* out) {
  const size_t width = DTypeBytes(from.dtype);
  ForChunks(elements, [&](size_t chunk) {
    const auto* const source = static_cast<const std::byte*>(from.data) + chunk * kChunk * width;
    auto* const to = reinterpret_cast<uint8_t*>(out) + chunk * kChunkBytes;
    if (from.dtype == DType::kFloat32) {
      kernels::PackInt8Blocks(reinterpret_cast<const float*>(source), kChunk, to, nullptr);
      return;
    }
    ChunkFloats wide;
    kernels::CopyCpu(kPackedChunk, {source, from.dtype}, {wide.data()}, SerialFor);
    kernels::PackInt8Blocks(wide.data(), kChunk, to, nullptr);
  });
}

void UnpackInt8(const std::byte* packed, int64_t elements, kernels::MutableFlat to) {
  const size_t width = DTypeBytes(to.dtype);
  ForChunks(elements, [&](size_t chunk) {
    auto* const target = static_cast<std::byte*>(to.data) + chunk * kChunk * width;
    if (to.dtype == DType::kFloat32) {
      kernels::UnpackInt8Blocks(PackedChunk(packed, chunk), kChunk,
                                reinterpret_cast<float*>(target),
                                /*add=*/false);
      return;
    }
    ChunkFloats wide;
    kernels::UnpackInt8Blocks(PackedChunk(packed, chunk), kChunk, wide.data(), /*add=*/false);
    kernels::CopyCpu(kPackedChunk, {wide.data()}, {target, to.dtype}, SerialFor);
  });
}

void SumInt8(const std::byte* packed, int parts, int64_t elements, float* to, bool add) {
  ForChunks(elements, [&](size_t chunk) {
    float* const target = to + chunk * kChunk;
    ChunkFloats sum;
    float* const into = add ? sum.data() : target;
    for (int part = 0; part < parts; ++part) {
      kernels::UnpackInt8Blocks(PackedChunk(packed + part * PackedBytes(elements), chunk), kChunk,
                                into,
                                /*add=*/part > 0);
    }
    if (add) {
      kernels::AccumulateCpu(kPackedChunk, {sum.data()}, {target}, SerialFor);
    }
  });
}

}  // namespace dtrain
