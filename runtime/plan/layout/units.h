// Units: parameters that ZeRO stage 3 gathers and frees together, as a program names them
// (EngineOptions::units) or its configuration does (zero_optimization.leaf_module). Pure;
// thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/plan/layout/layout.h"
#include "runtime/plan/layout/shard_plan.h"

namespace dtrain::plan {

// Gives for each layout the elements of its units, with the gaps behind their tensors: ascending,
// without overlap. A unit lists modules as torch::nn::Module::named_modules names them, whose
// parameters all belong to it, or parameters; `*` stands for any text. It may have parameters in
// several layouts, or in some alone. InvalidArgument: a name that nothing has, a parameter of two
// units, a unit whose parameters are no neighbours in a layout; all by name. Each module of
// `leaves` (LeafModules), "" being the whole model, is a unit too, but for one that lies within
// another.
absl::StatusOr<std::vector<std::vector<FlatRange>>> FindUnits(
    absl::Span<const ParamLayout* const> layouts, absl::Span<const std::vector<std::string>> units,
    absl::Span<const std::string> leaves = {});

// Elements of the largest of `leaves` in the layout, from its first parameter to its last; 0: none
// has one there.
int64_t LargestLeaf(const ParamLayout& layout, absl::Span<const std::string> leaves);

// The units that are gathered as a whole: all but those that are too large to be live at once and
// so are cut into several buckets. `units` are those of the layout that `shards` cuts, ascending.
std::vector<FlatRange> WholeUnits(const ShardPlan& shards, absl::Span<const FlatRange> units);

}  // namespace dtrain::plan
