// The one progress line that a person watches, from a metrics record (interop: metrics line v1).
//
// Pure. A rank alone prints it itself; under `dtrain launch` the agent prints it.
#pragma once

#include <string>

#include "base/json.h"

namespace dtrain {

struct ProgressStyle {
  int64_t total_steps = 0;  // 0: unknown, no percentage and no ETA.
  int columns = 0;          // 0: not a terminal, never cut.
};

// "step 120/600  loss 2.912  4,113 tok/s  gemm 61%  exposed comm 3.1%  ETA 2:11" from the record's
// "m" object (names as in docs/CONFIG.md); a name that is absent is left out. "" when `record` is
// no step record.
std::string FormatProgress(const Json& record, const ProgressStyle& style);

// "0:07", "12:45", "3:02:11", "4d 02:11" from seconds.
std::string FormatDuration(double seconds);

// 1234567 -> "1,234,567".
std::string WithThousands(int64_t value);

}  // namespace dtrain
