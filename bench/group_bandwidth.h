// How fast a group of two ranks moves messages: one way, and all-reduce of fp32.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json.h"
#include "comm/group.h"

namespace dtrain {

struct BandwidthPlan {
  std::vector<size_t> sizes;  // Bytes, multiples of 4.
  int rounds = 15;            // For each size, after one to warm up.
  int in_flight = 8;          // Calls of a round, queued at once as a backward's buckets are.
  bool registered = true;     // The buffer is registered with the group, as the engine's are.
};

struct BandwidthLine {
  std::string what;  // "send_receive" from rank 0 to rank 1, or "all_reduce_busbw".
  size_t bytes = 0;
  // 10^6 bytes by the median round of this rank; busbw of two ranks is bytes / time.
  double mb_s = 0;
};

// The two lines of each size; blocks until both ranks have them. Received bytes are compared with
// those sent. Internal: they differ. REQUIRES: a group of two ranks that both call it with
// equal plans.
absl::StatusOr<std::vector<BandwidthLine>> MeasureBandwidth(comm::Group& group,
                                                            const BandwidthPlan& plan);

// {"commit", "kernel", "registered", "in_flight", "transport",
//  "lines": [{"what", "bytes", "mb_s"}]}.
Json BandwidthJson(const comm::Group& group, const BandwidthPlan& plan,
                   const std::vector<BandwidthLine>& lines);

}  // namespace dtrain
