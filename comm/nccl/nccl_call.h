// One collective of an NcclGroup on its way to the stream. Internal to the NCCL group.
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
  FlightCall flight;  // For the records; Start fills in what all calls have.
  std::function<absl::Status(Deadline)> queue;  // Puts the work on the stream.
  int peer = -1;
  // The reduction's result, when its sum of squares is asked for.
  Buffer result;
  bool result_is_part =
      false;  // The result is a rank's part, as a reduce-scatter's: the ranks' sums are added up.
  double* sum_of_squares = nullptr;
};

}  // namespace dtrain::comm
