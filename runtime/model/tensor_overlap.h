// Finds tensors that share elements: tied by storage (set_data), or views of one tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/functional/function_ref.h"
#include "absl/types/span.h"

namespace dtrain {

// Where a tensor's elements are, without the tensor.
struct Footprint {
  uintptr_t begin = 0;  // The bytes from its first element to its last.
  uintptr_t end = 0;
  uintptr_t width = 0;                            // Bytes of an element.
  std::vector<std::pair<int64_t, int64_t>> dims;  // Strides, ascending, and sizes above 1.
  bool dense = false;                             // There are no gaps between the elements.
  at::Device device = at::Device(at::DeviceType::CPU);
};

// Nothing of a tensor without memory.
std::optional<Footprint> FootprintOf(const at::Tensor& tensor);
// Whether both have an element of memory in common. Neighbours in memory, such as the columns of
// one matrix, share nothing.
bool ShareElements(const Footprint& a, const Footprint& b);

// The places in `tensors` of two that have an element of memory in common and for which `matters`,
// the smaller place first; none: there are no such two. Reads no element.
std::optional<std::pair<size_t, size_t>> FindOverlap(
    absl::Span<const at::Tensor> tensors, absl::FunctionRef<bool(size_t a, size_t b)> matters);

}  // namespace dtrain
