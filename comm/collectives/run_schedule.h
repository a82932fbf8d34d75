// Runs a Schedule: moves its messages over a Transport and does its reductions in memory. Called by
// the thread that moves messages over the transport; the caller owns all memory.
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
  // The elements' type. Without a reduction, bytes may be counted (kUInt8).
  DType dtype = DType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  int average_over = 0;  // The divisor of an average; 0: the number of ranks.
  // When not null, the sum of squares of the results that this rank completed is added.
  double* sum_of_squares = nullptr;
};

// Transfers before and after a schedule that overlap with it, so that nobody waits in between.
struct ScheduleEnds {
  // Called first, with the transfers of the first step, which may begin right after those that this
  // function moves.
  absl::FunctionRef<absl::Status(absl::Span<const Transfer> first)> before;
  // Gives the transfers of the Move after the schedule, which begin right after those of its last
  // step; may be none. `summed`: every sum is complete when they begin.
  absl::FunctionRef<absl::Span<const Transfer>(bool summed)> behind;
};

// Blocks. `scratch` grows as needed and is kept by the caller for the next call. REQUIRES: the
// schedule's element_bytes are those of `memory.dtype`. Errors are the transport's.
absl::Status RunSchedule(const Schedule& schedule, const ScheduleMemory& memory,
                         std::vector<char>& scratch, Transport& transport,
                         const WaitContext& context, const ScheduleEnds& ends);

}  // namespace dtrain::comm
