// Flat values as int8 blocks (comm/compression/int8_blocks.h), for gathers and reductions of ZeRO.
//
// Values are packed in chunks of kPackedChunk elements, each complete in itself, so that threads
// share the work; blocks lie at multiples of their size in the layout, so that what is rounded does
// not depend on ranks and buckets. Same bits on every CPU and thread count. Thread-safe on disjoint
// buffers. REQUIRES: counts of elements are multiples of kPackedChunk.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/flat.h"
#include "kernels/optimizer/grad_norm.h"

namespace dtrain {

inline constexpr int64_t kPackedChunk = kernels::kNormBlock;

int64_t PackedBytes(int64_t elements);

// `out`: [PackedBytes(elements)].
void PackInt8(kernels::ConstFlat from, int64_t elements, std::byte* out);
void UnpackInt8(const std::byte* packed, int64_t elements, kernels::MutableFlat to);
// to [elements] = the sum of `parts` packed runs of `elements`, one after the other, in their
// order, in fp32; with `add`, that sum on top of what is there.
void SumInt8(const std::byte* packed, int parts, int64_t elements, float* to, bool add);

}  // namespace dtrain
