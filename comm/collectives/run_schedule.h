// Runs a Schedule: moves its messages over a Transport and does its reductions in memory.
#pragma once

#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "comm/collectives/schedule.h"
#include "comm/transport/transport.h"

namespace dtrain::comm {

struct ScheduleMemory {
  const char* input = nullptr;
  char* output = nullptr;
  // Of reductions. What only moves may be counted in bytes, as kUInt8.
  DType dtype = DType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  int average_over = 0;  // What an average divides by; 0: the number of ranks.
  // When not null: the sum of squares of what this rank completed is added.
  double* sum_of_squares = nullptr;
};

// What is moved before and after a schedule, so that nobody waits in between.
struct ScheduleEnds {
  // Called first, with the transfers of the first step: they may begin behind what this moves.
  absl::FunctionRef<absl::Status(absl::Span<const Transfer> first)> before;
  // Transfers of the Move after the schedule, which begin behind those of its last step; none is
  // right too. `summed`: every sum is complete when they do.
  absl::FunctionRef<absl::Span<const Transfer>(bool summed)> behind;
};

// Blocks. `scratch` grows as needed and is kept by the caller for the next call. REQUIRES: the
// schedule's element_bytes are those of `memory.dtype`. Errors are the transport's.
absl::Status RunSchedule(const Schedule& schedule, const ScheduleMemory& memory,
                         std::vector<char>& scratch, Transport& transport,
                         const WaitContext& context, const ScheduleEnds& ends);

}  // namespace dtrain::comm
