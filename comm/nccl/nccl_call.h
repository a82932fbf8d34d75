// One collective of an NcclGroup on its way to the stream. Only the NCCL group's own files use it.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "base/deadline.h"
#include "comm/buffer.h"
#include "comm/flight_recorder.h"
#include "comm/nccl/nccl_group.h"

namespace dtrain::comm {

struct NcclGroup::Call {
  std::string what;
  FlightCall flight;  // The call's record. Start fills in the fields that all calls have.
  std::function<absl::Status(Deadline)> queue;  // Puts the work on the stream.
  int peer = -1;
  // The result of a reduction whose sum of squares is asked for. If it is a rank's part, as that of
  // a reduce-scatter, the ranks' sums are added up.
  Buffer result;
  bool result_is_part = false;
  double* sum_of_squares = nullptr;
};

}  // namespace dtrain::comm
