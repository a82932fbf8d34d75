// Sends and receives over a Transport: each message is a CallHeader, then the bytes.
//
// Used by one thread at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "comm/collectives/backend.h"
#include "comm/transport/transport.h"

namespace dtrain::comm {

class PointToPoint {
 public:
  explicit PointToPoint(Transport& transport)
      : transport_(transport),
        sent_(static_cast<size_t>(transport.size())),
        received_(static_cast<size_t>(transport.size())) {}

  // Does all `calls` at the same time; between one pair in the order given.
  absl::Status Run(absl::Span<const Call> calls, const WaitContext& context);

 private:
  Transport& transport_;
  std::vector<uint64_t> sent_;
  std::vector<uint64_t> received_;
};

}  // namespace dtrain::comm
