// The forms of CRC-32C between which Crc32c chooses by the CPU: for their test, which compares each
// by name wherever the CPU has it. Everyone else calls Crc32c. Pure.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dtrain::crc32c {

// Each form advances `state`, the complement of a checksum, over `bytes` bytes and gives the new
// state.

// A table lookup for each byte; for every CPU.
uint32_t Portable(const uint8_t* data, size_t bytes, uint32_t state);

#if defined(__x86_64__)
// SSE4.2's instruction, from kThreeStreams bytes on in three streams at once.
inline constexpr size_t kThreeStreams = 3 * 4096;
bool HasHardware();
// REQUIRES: HasHardware().
uint32_t Hardware(const uint8_t* data, size_t bytes, uint32_t state);

// Folds 256 bytes at a time, with AVX-512F and VPCLMULQDQ.
inline constexpr size_t kFolded = 256;
bool HasFolded();
// REQUIRES: HasFolded(); `bytes` is a multiple of kFolded, at least one.
uint32_t Folded(const uint8_t* data, size_t bytes, uint32_t state);

// For AVX2 and VPCLMULQDQ: takes blocks of kFusedBlock by folding 128 bytes at a time and, at the
// same time, the instruction in three streams; folds the rest alone.
inline constexpr size_t kFused = 128;
inline constexpr size_t kFusedBlock = 4096 + 3 * 1280;
bool HasFused();
// REQUIRES: HasFused(); `bytes` is a multiple of kFused, at least one.
uint32_t Fused(const uint8_t* data, size_t bytes, uint32_t state);
#endif

}  // namespace dtrain::crc32c
