// The state of a process and its threads, as /proc has it. Thread-safe; never blocks. A process
// that is gone gives empty values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launcher/watch/rank_tracker.h"

namespace dtrain::launcher {

ProcessSample SampleProcess(int pid);

// Nanoseconds in which the main thread was ready without a CPU.
uint64_t MainThreadWaitNanos(int pid);

// Where a thread is, as far as the kernel tells from outside.
struct ThreadPlace {
  int thread = 0;
  std::string name;
  char state = '?';      // R, S, D, T, Z as ps shows it.
  std::string waits_in;  // The kernel's function in which it sleeps; "": it does not, or unknown.
};
// At most `threads_max` threads, the main one first.
std::vector<ThreadPlace> PlacesOfThreads(int pid, size_t threads_max);

}  // namespace dtrain::launcher
