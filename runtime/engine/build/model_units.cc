#include "runtime/engine/build/model_units.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/status.h"
#include "runtime/model/model_sync.h"
#include "runtime/plan/layout/leaf_modules.h"
#include "runtime/plan/layout/units.h"
#include "runtime/plan/layout/zero_policy.h"
#include "torch/nn/module.h"

namespace dtrain {
namespace {

// The modules that hold parameters, outer ones first.
std::vector<plan::ModuleFacts> FactsOfModules(const torch::nn::Module& model) {
  std::vector<plan::ModuleFacts> modules = {{"", model.name(), ""}};
  absl::flat_hash_map<const torch::nn::Module*, std::string> first_names;
  for (const auto& child : model.named_modules("", /*include_self=*/false)) {
    const torch::nn::Module* const module = child.value().get();
    if (!module->parameters().empty()) {
      const auto known = first_names.try_emplace(module, child.key()).first;
      modules.push_back({child.key(), module->name(), known->second});
    }
  }
  return modules;
}

// The entries of `flat` whose first element is in each unit.
std::vector<std::vector<size_t>> EntriesOf(const FlatParameters& flat,
                                           const std::vector<plan::FlatRange>& units) {
  std::vector<std::vector<size_t>> all(units.size());
  const std::vector<plan::LayoutEntry>& entries = flat.layout().entries();
  for (size_t entry = 0; entry < entries.size(); ++entry) {
    for (size_t unit = 0; unit < units.size(); ++unit) {
      if (units[unit].begin <= entries[entry].offset && entries[entry].offset < units[unit].end) {
        all[unit].push_back(entry);
      }
    }
  }
  return all;
}

}  // namespace

absl::StatusOr<LeafModules> TakeUnits(Job& job, torch::nn::Module& module, EngineState& state) {
  LeafModules leaf_modules;
  if (plan::ZeroPolicy::Of(job.config()).shards_weights) {
    DT_ASSIGN_OR_RETURN(leaf_modules,
                        plan::FindLeafModules(FactsOfModules(module), job.config().leaf_modules()));
  }
  DT_ASSIGN_OR_RETURN(const plan::ParamLayout whole, state.flat->FrozenLayout());
  std::vector<const plan::ParamLayout*> layouts = {&state.flat->layout(), &whole};
  if (state.frozen != nullptr) {
    layouts.push_back(&state.frozen->flat->layout());
  }
  DT_ASSIGN_OR_RETURN(auto units, plan::FindUnits(layouts, state.options.units, leaf_modules));
  state.units = std::move(units[0]);
  std::vector<plan::FlatRange> all = state.units;
  if (state.frozen != nullptr) {
    state.frozen->units = std::move(units[2]);
    all.insert(all.end(), state.frozen->units.begin(), state.frozen->units.end());
  }
  DT_RETURN_IF_ERROR(CheckSameUnits(job.group(), all));
  return leaf_modules;
}

void ReduceByUnits(const EngineState& state, GradientSync& gradients) {
  if (state.live == nullptr) {
    return;
  }
  const std::vector<plan::FlatRange> units = plan::WholeUnits(*state.shards, state.units);
  if (!units.empty()) {
    gradients.UseUnits(EntriesOf(*state.flat, units));
    state.live->OnUnitEnd([&gradients](size_t unit) { gradients.EndUnit(unit); });
  }
}

}  // namespace dtrain
