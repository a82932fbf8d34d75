// Times of what a user waits for, on machines that run other tests too.
#pragma once

#include <algorithm>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"

namespace dtrain::testing {

// The shortest that `run` says it took, of at most `tries`; the first below `limit` is enough. A
// busy machine may hold up one of them, but hardly each.
inline absl::Duration ShortestOf(int tries, absl::Duration limit,
                                 absl::FunctionRef<absl::Duration()> run) {
  absl::Duration shortest = absl::InfiniteDuration();
  for (int i = 0; i < tries && shortest >= limit; ++i) {
    shortest = std::min(shortest, run());
  }
  return shortest;
}

}  // namespace dtrain::testing
