// Units: parameters that ZeRO stage 3 gathers and frees together, as a program names them
// (EngineOptions::units). Pure; thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/plan/layout.h"
#include "runtime/plan/shard_plan.h"

namespace dtrain::plan {

// Of each layout, the elements of its units, with the gaps behind their tensors: ascending, without
// overlap. A unit lists modules as torch::nn::Module::named_modules names them, whose parameters
// all belong to it, or parameters; `*` stands for any text. It may have parameters in several
// layouts, or in some alone. InvalidArgument: a name that nothing has, a parameter of two units, a
// unit whose parameters are no neighbours in a layout; all by name.
absl::StatusOr<std::vector<std::vector<FlatRange>>> FindUnits(
    absl::Span<const ParamLayout* const> layouts, absl::Span<const std::vector<std::string>> units);

}  // namespace dtrain::plan
