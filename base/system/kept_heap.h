// Keeps memory that a training step frees in the process, because the next step needs it again.
// Changes settings of the whole process.
#pragma once

#include <cstdint>

#include "base/job_env.h"

namespace dtrain {

// glibc gives large blocks back to the kernel as they are freed, so each step of a CPU rank gets
// new pages for its activations, zeroed one by one (11,000 faults, 4 % of a step of the default
// GPT). After this call glibc keeps blocks below 32 MiB for the next step. Larger blocks that fit
// into no free one are still mapped anew each time. The free end of an arena goes back to the
// kernel once it exceeds 2 GiB or an eighth of `available`, the bytes that this process may use, if
// that is less; this limits neither free memory between blocks in use nor the sum over arenas. Does
// nothing if the eighth is below 256 MiB, because kept memory is scattered and adds to the peak, if
// the user has tuned glibc's heap (MALLOC_..._, GLIBC_TUNABLES), and with other C libraries.
// REQUIRES: called early, before large blocks are allocated.
void KeepFreedMemory(const Environment& environment, int64_t available);

// Allocates `bytes` in blocks that KeepFreedMemory keeps, touches each page and frees them: the
// next blocks then cause no page faults. For measurements of operations: a profiler's own small
// blocks split the free ones that large tensors come back to, and the faults of the tensors' new
// places would count as the operations' time (a fifth of what the default GPT's step does outside
// its products).
void WarmFreedMemory(int64_t bytes);
// Memory that two steps of the default GPT under LibTorch's profiler need.
inline constexpr int64_t kProfilersShare = int64_t{256} << 20;

}  // namespace dtrain
