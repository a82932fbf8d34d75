// Finds tensors that share elements: tied by storage (set_data), or views of one tensor.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>

#include "ATen/core/Tensor.h"
#include "absl/functional/function_ref.h"
#include "absl/types/span.h"

namespace dtrain {

// The places in `tensors` of two that have an element of memory in common and for which `matters`,
// the smaller place first; none: there are no such two. Neighbours in memory, such as the columns
// of one matrix, share nothing. Reads no element.
std::optional<std::pair<size_t, size_t>> FindOverlap(
    absl::Span<const at::Tensor> tensors, absl::FunctionRef<bool(size_t a, size_t b)> matters);

}  // namespace dtrain
