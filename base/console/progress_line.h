// Formats the progress line from a metrics record (metrics line v1), and numbers for people.
//
// Pure. A rank alone prints the line itself; under `dtrain launch` the agent does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/json.h"

namespace dtrain {

// The columns after the step unless `metrics.console` names others. The most important one is
// first, because a narrow terminal leaves out the last ones.
std::vector<std::string> DefaultProgressColumns();

struct ProgressStyle {
  int64_t total_steps = 0;  // 0: unknown, so no total and no ETA.
  int width = 0;            // Width of the terminal, which the line must fit; 0: any length.
  std::vector<std::string> columns = DefaultProgressColumns();
};

// Whether `record` is a step of rank 0 with its loss or its rate. A single value of the program's
// own does not count: it would replace the line that a person reads.
bool IsProgress(const Json& record);

// "step 120/600  loss 2.9120  4,113 tokens/s  ETA 2:11  lr 3e-4" from the record's "m" object
// (names as in docs/CONFIG.md). A column is a name of ProgressColumnNames or of any metric; one
// without a value is left out, and so is one whose metric is already in the line. If the line would
// be wider than `style.width`, the last columns are left out whole. The rate's unit comes from its
// metric's name: "perf/images_per_s". "" unless IsProgress.
std::string FormatProgress(const Json& record, const ProgressStyle& style);

// The short names of columns, for documents: "loss", "rate", "eta", ...
std::vector<std::string> ProgressColumnNames();

// The metric that the column shows in this record: "train/loss" for "loss", the name itself for
// one of the program's own; "" where the record has no value for it.
std::string MetricOfColumn(const Json& record, absl::string_view column);

// A duration in seconds as "0:07", "12:45", "3:02:11" or "4d 02:11".
std::string FormatDuration(double seconds);

// The age of something: "12 s", "3 min", "5 h", "4 days".
std::string FormatAge(double seconds);

// Three significant digits, without trailing zeros of the mantissa: "0.0125", "12.5", "2370",
// "3e-4", "1.25e7".
std::string FormatShort(double value);

// "512 B", "6.1 MB", "61 MB", "1.4 GB".
std::string FormatBytes(double bytes);

// 1234567 -> "1,234,567".
std::string WithThousands(int64_t value);

}  // namespace dtrain
