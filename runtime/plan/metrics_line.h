// One line of metrics/rank-R.jsonl, version 1: the contract between a rank, which writes it, and
// every reader (agent, TensorBoard, report, other people's programs). Pure; thread-safe.
//
//   {"v":1,"ts":1763.5,"run":"r","attempt":0,"rank":0,"node":"n1","kind":"step","step":12,
//    "samples":384,"m":{"train/loss":2.31,"perf/tokens_per_s":1.2e5}}
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/json.h"

namespace dtrain::plan {

enum class MetricsKind { kStep, kEval, kCheckpoint, kEvent, kConfig };
// "step", "eval", "ckpt", "event", "config".
absl::string_view MetricsKindName(MetricsKind kind);

struct MetricsRecord {
  double unix_seconds = 0;
  std::string run;
  int attempt = 0;
  int rank = 0;
  std::string node;
  MetricsKind kind = MetricsKind::kStep;
  int64_t step = 0;     // Optimizer steps done.
  int64_t samples = 0;  // Samples consumed by them over all ranks.
  // Names as in docs/METRICS.md ("train/loss"), in the order in which they are written.
  std::vector<std::pair<std::string, double>> metrics;
  // Further facts of an event, written as keys beside "m".
  Json details = Json::object();
};

// The record as the object that the line holds. Not-finite numbers are the strings "NaN",
// "Infinity", "-Infinity".
Json MetricsJson(const MetricsRecord& record);

}  // namespace dtrain::plan
