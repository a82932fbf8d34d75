#include "runtime/model/tensor_overlap.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace dtrain {
namespace {

// The bytes from a tensor's first element to its last.
struct Extent {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  size_t tensor = 0;  // Its place.
};

bool HasMemory(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_meta() &&
         tensor.numel() > 0 && tensor.const_data_ptr() != nullptr;
}

Extent ExtentOf(const at::Tensor& tensor, size_t place) {
  int64_t last = 0;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    last += (tensor.size(dim) - 1) * tensor.stride(dim);
  }
  const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  return {begin, begin + static_cast<uintptr_t>(last + 1) * tensor.element_size(), place};
}

// A tensor's elements as runs of equal length without gaps.
struct Runs {
  std::vector<uintptr_t> begins;  // Ascending.
  uintptr_t bytes = 0;
};

Runs RunsOf(const at::Tensor& tensor) {
  std::vector<std::pair<int64_t, int64_t>> dims;  // Strides, ascending, and sizes.
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.size(dim) > 1) {
      dims.emplace_back(tensor.stride(dim), tensor.size(dim));
    }
  }
  std::sort(dims.begin(), dims.end());
  int64_t run = 1;
  auto outer = dims.begin();
  for (; outer != dims.end() && outer->first == run; ++outer) {
    run *= outer->second;
  }
  const auto width = static_cast<uintptr_t>(tensor.element_size());
  Runs runs{{reinterpret_cast<uintptr_t>(tensor.const_data_ptr())},
            static_cast<uintptr_t>(run) * width};
  for (; outer != dims.end(); ++outer) {
    const size_t count = runs.begins.size();
    for (int64_t i = 1; i < outer->second; ++i) {
      for (size_t j = 0; j < count; ++j) {
        runs.begins.push_back(runs.begins[j] + static_cast<uintptr_t>(i * outer->first) * width);
      }
    }
  }
  std::sort(runs.begins.begin(), runs.begins.end());
  return runs;
}

// REQUIRES: their extents overlap.
bool ShareElements(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_non_overlapping_and_dense() && b.is_non_overlapping_and_dense()) {
    return true;
  }
  const Runs of_a = RunsOf(a);
  const Runs of_b = RunsOf(b);
  for (size_t i = 0, j = 0; i < of_a.begins.size() && j < of_b.begins.size();) {
    if (of_a.begins[i] + of_a.bytes <= of_b.begins[j]) {
      ++i;
    } else if (of_b.begins[j] + of_b.bytes <= of_a.begins[i]) {
      ++j;
    } else {
      return true;
    }
  }
  return false;
}

}  // namespace

std::optional<std::pair<size_t, size_t>> FindOverlap(
    absl::Span<const at::Tensor> tensors, absl::FunctionRef<bool(size_t a, size_t b)> matters) {
  std::vector<Extent> extents;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (HasMemory(tensors[i])) {
      extents.push_back(ExtentOf(tensors[i], i));
    }
  }
  std::sort(extents.begin(), extents.end(), [](const Extent& x, const Extent& y) {
    return std::pair(x.begin, x.tensor) < std::pair(y.begin, y.tensor);
  });
  std::vector<Extent> open;  // Those that have begun and may not have ended.
  for (const Extent& next : extents) {
    std::erase_if(open, [&](const Extent& before) { return before.end <= next.begin; });
    for (const Extent& before : open) {
      const auto [a, b] = std::minmax(before.tensor, next.tensor);
      if (tensors[a].device() == tensors[b].device() && matters(a, b) &&
          ShareElements(tensors[a], tensors[b])) {
        return std::pair(a, b);
      }
    }
    open.push_back(next);
  }
  return std::nullopt;
}

}  // namespace dtrain
