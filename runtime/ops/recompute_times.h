// The cost of recomputing: seconds that backward spent on running segments again, and on waiting
// for tensors that they had kept in a far tier. Summed over all threads and engines of the process;
// thread-safe.
#pragma once

namespace dtrain {

struct RecomputeSeconds {
  double recompute = 0;
  double wait = 0;
};

// Since the last call.
RecomputeSeconds TakeRecomputeSeconds();

}  // namespace dtrain
