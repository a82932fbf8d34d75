// Where ranks of ZeRO stage 3 parted, when their collectives do not fit together: which weights
// each read, and which gradients came, by name, and what to do.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/json.h"
#include "comm/net/store.h"
#include "runtime/optimizer/engine_state.h"

namespace dtrain {

// A rank's reads and gradients in the step up to now.
struct RankTrace {
  std::vector<int64_t> reads;         // LiveParameters::reads of the weights that train,
  std::vector<int64_t> frozen_reads;  // and of frozen ones.
  std::vector<int> gradients;         // GradientSync::readiness.

  Json ToJson() const;
  // InvalidArgument: it is none.
  static absl::StatusOr<RankTrace> FromJson(const Json& json);
};

// A trace and the rank it is of.
struct TraceOf {
  int rank = 0;
  const RankTrace& trace;
};

// One sentence that names the first difference, and one that says what to do. None: as far as both
// came they did the same.
std::optional<std::string> DescribeDifference(const EngineState& state, const TraceOf& a,
                                              const TraceOf& b, int64_t live_max);

// Where ranks exchange their traces: after a collective that did not fit, over the store.
struct TraceExchange {
  comm::Store& store;
  std::string prefix;  // Begins keys; one for each failure.
  int rank = 0;
  int size = 1;
};

// `failure`, with what DescribeDifference says of this rank and the first other one that answers
// within seconds and differs. REQUIRES: comm::AreRanksDifferent(failure).
absl::Status NameDifference(const absl::Status& failure, const EngineState& state,
                            const RankTrace& mine, const TraceExchange& exchange, int64_t live_max);

}  // namespace dtrain
