// Packs whole samples into rows of equal length: best fit, longest first. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace dtrain::plan {

// The samples of each row, by their numbers. Samples are taken from the longest on, equal ones in
// their order; each goes into the fullest row that has room for it, the first of equal ones, or
// begins a new one. The lengths of a row sum to at most `row_length`. O(n log n).
// REQUIRES: every length is from 1 to `row_length`, and there are fewer than 2^32 samples.
std::vector<std::vector<uint32_t>> PackSamples(absl::Span<const int32_t> lengths,
                                               int64_t row_length);

}  // namespace dtrain::plan
