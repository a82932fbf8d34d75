// The one list of the metrics that dtrain writes. docs/METRICS.md is made from it, and tests/tidy
// compares it with the names in the code. Thread-safe; never changes.
#pragma once

#include "absl/types/span.h"

namespace dtrain::plan {

struct MetricName {
  const char* name;     // "train/loss".
  const char* unit;     // "s", "bytes"; "-" for a plain number.
  const char* meaning;  // One sentence.
  const char* ranks;    // The ranks that write it: "rank 0", "all".
  const char* when;     // In which records it stands.
  const char* shown;    // Places beside the metrics file that show it; "": only TensorBoard.
};

absl::Span<const MetricName> MetricNames();

}  // namespace dtrain::plan
