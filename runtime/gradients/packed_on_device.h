// Int8 blocks on a GPU: packed_blocks.h in stream operations. A run of elements is complete in
// itself: its values, then its scales, so that one launch takes a run however long it is. The host
// has the same bytes in another order, but no rank on a host reads these. Numbers have the bits of
// the host's (kernels/quantize/int8_blocks.h), but where a NaN is CUDA's own (cuda_table.h): of a
// block with a NaN or an infinity the scale and each number that comes back. Nothing waits;
// thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "comm/compression/int8_blocks.h"
#include "kernels/cuda/cuda_table.h"

namespace dtrain {

// Bytes of a run. REQUIRES here and below: a multiple of comm::kInt8Block elements; of
// kAlignedRun, where runs follow one another and kernels shall take 16 bytes at a time.
constexpr size_t PackedRunBytes(int64_t elements) {
  return comm::Int8Bytes(static_cast<size_t>(elements));
}
inline constexpr int64_t kAlignedRun = 4 * static_cast<int64_t>(comm::kInt8Block);

// `from`: [elements] fp32 or bf16. `out`: [PackedRunBytes(elements)]. `error`, [elements], gets
// what rounding took away; null, or from.data if that is fp32.
absl::Status QueuePackInt8(const kernels::CudaKernelTable& kernels, kernels::ConstFlat from,
                           int64_t elements, std::byte* out, float* error, CudaStream stream);

// The first `elements` of a run of `run`, into `to` (fp32 or bf16) or added to what is there.
absl::Status QueueUnpackInt8(const kernels::CudaKernelTable& kernels, const std::byte* packed,
                             int64_t run, int64_t elements, kernels::MutableFlat to, bool add,
                             CudaStream stream);

}  // namespace dtrain
