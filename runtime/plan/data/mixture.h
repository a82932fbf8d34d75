// Which part of a mixture of corpora each sample is drawn from: a fixed pattern that repeats.
//
// The pattern has 65,536 places. Each part has its weight's share of them, at least one unless its
// weight is 0, and the places of each are spread evenly: after any number of samples, no part has
// been drawn more than once beyond its share. Sample number n therefore needs no state: every world
// size, and a resumed run, draws the same. Pure; thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace dtrain::plan {

class MixturePattern {
 public:
  static constexpr int64_t kPlaces = 65536;
  static constexpr int64_t kPartsMax = 4096;

  // InvalidArgument: no weights or too many, one that is negative or not finite, or a sum of 0.
  static absl::StatusOr<MixturePattern> Create(absl::Span<const double> weights);

  // The part of a sample, and the number of earlier samples of the same part.
  struct Draw {
    int part = 0;
    int64_t index = 0;
  };
  Draw At(int64_t number) const;  // REQUIRES: number >= 0.

  // The places of each part.
  const std::vector<int64_t>& shares() const { return shares_; }

 private:
  MixturePattern() = default;
  std::vector<int64_t> shares_;
  std::vector<uint16_t> part_;   // The part at each place.
  std::vector<uint16_t> index_;  // Earlier places of the same part.
};

}  // namespace dtrain::plan
