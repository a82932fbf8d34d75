// What `dtrain bench comm` prints: nccl-tests' columns, and JSON.
#pragma once

#include <cstddef>
#include <cstdio>
#include <optional>
#include <string>

#include "base/json.h"
#include "comm/tools/bench_backends.h"
#include "comm/tools/bench_options.h"

namespace dtrain::comm {

struct BenchTime {
  double micros = 0;
  double algbw = 0;  // GB/s.
  double busbw = 0;
  double of_limit = 0;
  size_t wrong = 0;
};

struct BenchRow {
  BenchKind kind = BenchKind::kAllReduce;
  size_t bytes = 0;
  size_t count = 0;
  BenchTime out_of_place;
  std::optional<BenchTime> in_place;  // None: there is no such call.
};

// "sum" for what reduces, "none" for the others; the root or -1.
std::string RedopOf(BenchKind kind, const BenchPlan& plan);
int RootOf(BenchKind kind, const BenchPlan& plan);

// Where the table goes: standard output belongs to the JSON where it was asked for there.
std::FILE* TableFile(const BenchPlan& plan);
void PrintHead(const BenchPlan& plan, const BenchBackend& backend, BenchKind kind);
void PrintRow(const BenchPlan& plan, const BenchRow& row);

Json RowJson(const BenchPlan& plan, const BenchBackend& backend, const BenchRow& row, double limit);
// With what stands for all rows. `provenance`: base/provenance.h's, of before the measurement.
absl::Status WriteReport(const BenchPlan& plan, const Json& provenance, Json rows);

}  // namespace dtrain::comm
