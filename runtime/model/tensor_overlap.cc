#include "runtime/model/tensor_overlap.h"

#include <algorithm>

namespace dtrain {
namespace {

bool HasMemory(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_meta() &&
         tensor.numel() > 0 && tensor.const_data_ptr() != nullptr;
}

// A tensor's elements as runs of equal length without gaps.
struct Runs {
  std::vector<uintptr_t> begins;  // Ascending.
  uintptr_t bytes = 0;
};

Runs RunsOf(const Footprint& of) {
  int64_t run = 1;
  auto outer = of.dims.begin();
  for (; outer != of.dims.end() && outer->first == run; ++outer) {
    run *= outer->second;
  }
  Runs runs{{of.begin}, static_cast<uintptr_t>(run) * of.width};
  for (; outer != of.dims.end(); ++outer) {
    const size_t count = runs.begins.size();
    for (int64_t i = 1; i < outer->second; ++i) {
      for (size_t j = 0; j < count; ++j) {
        runs.begins.push_back(runs.begins[j] + static_cast<uintptr_t>(i * outer->first) * of.width);
      }
    }
  }
  std::sort(runs.begins.begin(), runs.begins.end());
  return runs;
}

// A tensor's memory, and its place among others.
struct Extent {
  Footprint memory;
  size_t tensor = 0;
};

}  // namespace

std::optional<Footprint> FootprintOf(const at::Tensor& tensor) {
  if (!HasMemory(tensor)) {
    return std::nullopt;
  }
  Footprint found;
  int64_t last = 0;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    last += (tensor.size(dim) - 1) * tensor.stride(dim);
    if (tensor.size(dim) > 1) {
      found.dims.emplace_back(tensor.stride(dim), tensor.size(dim));
    }
  }
  std::sort(found.dims.begin(), found.dims.end());
  found.width = static_cast<uintptr_t>(tensor.element_size());
  found.begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  found.end = found.begin + static_cast<uintptr_t>(last + 1) * found.width;
  found.dense = tensor.is_non_overlapping_and_dense();
  found.device = tensor.device();
  return found;
}

bool ShareElements(const Footprint& a, const Footprint& b) {
  if (a.device != b.device || a.end <= b.begin || b.end <= a.begin) {
    return false;
  }
  if (a.dense && b.dense) {
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

std::optional<std::pair<size_t, size_t>> FindOverlap(
    absl::Span<const at::Tensor> tensors, absl::FunctionRef<bool(size_t a, size_t b)> matters) {
  std::vector<Extent> extents;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (auto memory = FootprintOf(tensors[i])) {
      extents.push_back({*std::move(memory), i});
    }
  }
  std::sort(extents.begin(), extents.end(), [](const Extent& x, const Extent& y) {
    return std::pair(x.memory.begin, x.tensor) < std::pair(y.memory.begin, y.tensor);
  });
  std::vector<const Extent*> open;  // Those that have begun and may not have ended.
  for (const Extent& next : extents) {
    std::erase_if(open,
                  [&](const Extent* before) { return before->memory.end <= next.memory.begin; });
    for (const Extent* const before : open) {
      const auto [a, b] = std::minmax(before->tensor, next.tensor);
      if (matters(a, b) && ShareElements(before->memory, next.memory)) {
        return std::pair(a, b);
      }
    }
    open.push_back(&next);
  }
  return std::nullopt;
}

}  // namespace dtrain
