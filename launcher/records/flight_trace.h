// The flight records of all ranks as one timeline (RUN_DIR/flight/rank-R.json, written by
// comm/flight_recorder). Pure.
//
// Ranks of several hosts have clocks that differ. Collectives tell by how much: no rank leaves one
// before all have entered it, so for ranks a and b that took part in the same one
//   start_a - end_b  <=  clock_a - clock_b  <=  end_a - start_b,
// and together the collectives of a record give an interval that is often shorter than a
// millisecond.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/json.h"

namespace dtrain::launcher {

// One call. Times are nanoseconds of the rank's wall clock; 0: that has not happened.
struct FlightEntry {
  std::string group;
  uint64_t sequence = 0;  // 0: a send or receive, which concerns only two ranks.
  std::string kind;       // "all_reduce".
  std::string name;       // "bucket 3 (...)", or "".
  std::string call;       // The whole call as text.
  std::string error;
  uint64_t bytes = 0;
  int64_t step = -1;
  int64_t queued = 0;
  int64_t started = 0;
  int64_t completed = 0;
  int64_t failed = 0;
};

struct FlightFile {
  int rank = 0;
  std::string host;
  int64_t written = 0;  // When the file was written, by the same clock.
  std::vector<FlightEntry> entries;
};

// InvalidArgument names `path` and what is missing.
absl::StatusOr<FlightFile> ParseFlightFile(const Json& json, const std::string& path);

// How far a rank's clock is ahead of the first file's.
struct ClockOffset {
  int64_t nanos = 0;
  int64_t error_nanos = 0;  // The largest error of the offset.
  bool known = true;        // False: no collective in common with any other; taken as 0.
};

// The offset of each file's clock. A rank on the same host as the one it is compared with has
// offset 0 unless the collectives contradict it.
std::vector<ClockOffset> AlignClocks(absl::Span<const FlightFile> files);

// Chrome's trace format, which chrome://tracing and ui.perfetto.dev open: one process a rank, one
// track a group. Calls that did not end last until their file was written. REQUIRES: as many
// offsets as files.
Json ChromeTrace(absl::Span<const FlightFile> files, absl::Span<const ClockOffset> offsets);

}  // namespace dtrain::launcher
