// How long to wait after one failure more. Pure.
#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace dtrain {

struct Backoff {
  absl::Duration first;
  int factor = 2;  // A wait is so many times as long as the one before.
  absl::Duration longest;

  // The wait after so many failures in a row. REQUIRES: `failures` >= 1.
  absl::Duration After(int failures) const {
    absl::Duration wait = first;
    for (int i = 1; i < failures && wait < longest; ++i) {
      wait *= factor;
    }
    return std::min(wait, longest);
  }
};

}  // namespace dtrain
