// A batch of rows whose numbers follow from the step and the row's place alone, and a rank's part
// of it, so that the same steps can be taken by any number of ranks and micro-batches.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "absl/status/statusor.h"

namespace dtrain::testing {

// Rows [first, first + rows) of a step's batch: [rows, 4].
inline at::Tensor SineRows(int64_t step, int64_t first, int64_t rows) {
  return at::sin(at::arange(first * 4, (first + rows) * 4, at::kFloat) * 1.7 + step).view({-1, 4});
}

// A rank's part of batches of kRows, in as many micro-batches as the engine takes for a step.
template <int64_t kRows>
struct SineRowsSource {
  int rank = 0;
  int size = 1;
  int accumulation = 1;
  int64_t call = 0;
  absl::StatusOr<at::Tensor> Next() {
    const int64_t rows = kRows / size / accumulation;
    const int64_t place = rank * accumulation + call % accumulation;
    return SineRows(call++ / accumulation, place * rows, rows);
  }
};

}  // namespace dtrain::testing
