// Kernels with one mistake each, as a person makes them, and one without.
#pragma once

#include <cstdint>

namespace dtrain::emulation {

enum class Mistake {
  kNone,
  kNoBarrier,             // Reads what another warp has yet to write.
  kNoSecondBarrier,       // Writes again what another warp has yet to read.
  kBarrierInABranch,      // The upper half of the block meets at another barrier,
  kBarrierInAnotherFile,  // which is at the same line.
  kLeftTheWarp,           // Half of a warp has returned when the rest shuffles.
  kShuffleInABranch,      // A lane waits for one that waits at the block's barrier.
  kUnwrittenShared,       // Reads shared memory that nobody wrote.
};
// out[i] = the sum of `in` over i's warp, for one block of 256 threads.
void LaunchWarpSums(Mistake mistake, const float* in, float* out);

// out[i] = i for i < n, by one thread each, in blocks of `threads`; the kernel has bounds of 256.
void LaunchCount(int64_t n, unsigned blocks, unsigned threads, int64_t* out);

// Four values by one load and one store of 16 bytes, as kernels do where addresses allow it.
void LaunchCopyFour(const float* in, float* out);

}  // namespace dtrain::emulation
