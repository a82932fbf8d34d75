// Layouts for the tests of plans.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/plan/layout/layout.h"

namespace dtrain::plan {

// One-dimensional fp32 tensors p0, p1, ... of these sizes, in layout order.
inline ParamLayout LayoutOf(const std::vector<int64_t>& sizes_in_layout_order) {
  std::vector<ParamSpec> parameters;
  for (size_t i = sizes_in_layout_order.size(); i-- > 0;) {
    parameters.push_back({absl::StrCat("p", i), {sizes_in_layout_order[i]}, DType::kFloat32});
  }
  return *ParamLayout::Create(parameters);
}

}  // namespace dtrain::plan
