// The output of `dtrain bench comm`: nccl-tests' columns, and JSON. Called by rank 0's main thread.
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

// "sum" for reductions, "none" for other collectives; the root or -1.
std::string RedopOf(BenchKind kind, const BenchPlan& plan);
int RootOf(BenchKind kind, const BenchPlan& plan);

// The stream of the table: standard error if the JSON goes to standard output.
std::FILE* TableFile(const BenchPlan& plan);
void PrintHead(const BenchPlan& plan, const BenchBackend& backend, BenchKind kind);
void PrintRow(const BenchPlan& plan, const BenchRow& row);

Json RowJson(const BenchPlan& plan, const BenchBackend& backend, const BenchRow& row, double limit);
// Writes the rows with the values that hold for all of them. `provenance`: as base/provenance.h
// gave it before the measurement.
absl::Status WriteReport(const BenchPlan& plan, const Json& provenance, Json rows);

}  // namespace dtrain::comm
