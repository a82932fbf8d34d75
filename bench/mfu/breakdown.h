// The time of one profiled step by kind of work: every nanosecond belongs to one kind.
// Pure; free of LibTorch; thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace dtrain::bench {

enum class Work {
  kGemm,
  kAttention,
  kMemoryBound,
  kCommunication,  // Exposed: nothing else ran meanwhile.
  kIdle,           // Nothing ran: on a CPU, what is neither an operation nor a wait for peers.
};
inline constexpr int kWorkKinds = 5;
// "GEMM", "attention", "memory-bound", "communication exposed", "idle".
const char* WorkName(Work work);

// A range of time with a name, in nanoseconds of one clock.
struct TimedRange {
  std::string name;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};

struct Breakdown {
  double seconds[kWorkKinds] = {};

  double total() const;
  double share(Work work) const;  // The share of the total; 0 when that is 0.
};

// The work of a CPU rank's training thread between `begin_ns` and `end_ns`. `ranges` are nested
// (operations, and dtrain's phases, in which they lie). A moment belongs to the innermost range
// there: to attention or communication when an outer one is, to idle when it only names a phase,
// rearranges sizes and strides, or allocates.
Breakdown BreakDownThread(std::vector<TimedRange> ranges, int64_t begin_ns, int64_t end_ns);

// The work of a GPU: `kernels` of all streams, which may overlap. A moment in which several run
// belongs to the first kind in the order of Work that has one.
Breakdown BreakDownDevice(const std::vector<TimedRange>& kernels, int64_t begin_ns, int64_t end_ns);

// The kernels of one name, or the idle time of a GPU after them.
struct KernelTotal {
  std::string name;
  int64_t calls = 0;
  double seconds = 0;
};

// The time of `kernels` by name, the longest first; kernels that overlap count whole.
std::vector<KernelTotal> TotalsByName(const std::vector<TimedRange>& kernels);
// The time between `begin_ns` and `end_ns` in which no kernel runs, by the name of the kernel that
// ended last before it ("" before the first one), the longest first.
std::vector<KernelTotal> IdleAfterKernels(std::vector<TimedRange> kernels, int64_t begin_ns,
                                          int64_t end_ns);

// The kind of an operation of LibTorch or dtrain by its name ("aten::mm"); kIdle: one that moves no
// data, or only names a phase.
Work WorkOfOperation(absl::string_view name);
// The kind of a CUDA kernel by its (mangled or plain) name.
Work WorkOfKernel(absl::string_view name);

}  // namespace dtrain::bench
