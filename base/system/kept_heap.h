// Memory that a training step frees and the next one wants again stays in the process.
#pragma once

#include <cstdint>

#include "base/job_env.h"

namespace dtrain {

// glibc gives large blocks back to the kernel as they are freed, so each step of a CPU rank takes
// its activations' pages anew, zeroed one by one (11,000 faults, 4 % of a step of the default GPT).
// This has it keep blocks below 32 MiB for the next step. Larger ones, where no free one holds
// them, are still mapped anew each time. The free end of an arena goes back once it passes 2 GiB or
// an eighth of `available`, the bytes that this process may count on, if that is less; this limits
// neither what is free between blocks in use nor the sum over arenas. Does nothing where the eighth
// is below 256 MiB, since what is kept is scattered and adds to the peak; where the user has tuned
// glibc's heap (MALLOC_..._, GLIBC_TUNABLES); and on other C libraries. REQUIRES: early, before
// large blocks are allocated.
void KeepFreedMemory(const Environment& environment, int64_t available);

// Takes `bytes` in blocks that KeepFreedMemory keeps, touches each page and frees them: the next
// blocks come without page faults. For who measures operations: a profiler's own small blocks
// split the free ones that large tensors come back to, and the faults of the tensors' new places
// would count as the operations' time (a fifth of what the default GPT's step does outside its
// products).
void WarmFreedMemory(int64_t bytes);
// What the default GPT's two steps under LibTorch's profiler take.
inline constexpr int64_t kProfilersShare = int64_t{256} << 20;

}  // namespace dtrain
