// CRC-32C (Castagnoli, RFC 3720): checkpoint blocks, data frames, TensorBoard records.
// Crc32c("123456789") = 0xe3069283. Uses SSE4.2 when the CPU has it, and carry-less products when
// it also has VPCLMULQDQ with AVX-512F or AVX2; rates: docs/PERFORMANCE.md. Pure.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dtrain {

// The checksum of `data`, continued from `crc` of the bytes before (0 at the start).
uint32_t Crc32c(const void* data, size_t bytes, uint32_t crc = 0);

}  // namespace dtrain
