// Units of ZeRO stage 3: which modules a program or its configuration names, what follows for
// gathers and gradients, and what an error says where none is named and ranks use different
// weights.
#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "comm/call.h"
#include "runtime/engine/engine_impl.h"
#include "runtime/engine/rank_difference.h"
#include "runtime/job/job_state.h"
#include "runtime/model/model_sync.h"
#include "runtime/plan/layout/leaf_modules.h"
#include "runtime/plan/layout/units.h"
#include "torch/nn/module.h"

namespace dtrain {
namespace {

// Those that hold parameters, outer ones first.
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

// Collective.
absl::Status Engine::Impl::TakeUnits() {
  if (state.zero_stage == 3) {
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
  return CheckSameUnits(job.group(), all);
}

// A leaf module is live as a whole, as with DeepSpeed, whatever the limit.
absl::StatusOr<plan::LiveShares> Engine::Impl::SharesOfLive() const {
  DT_ASSIGN_OR_RETURN(const plan::ShardOptions options, OptionsOfShards());
  const plan::ParamLayout& training = state.flat->layout();
  const plan::ParamLayout* const frozen =
      state.frozen == nullptr ? nullptr : &state.frozen->flat->layout();
  plan::LiveShares shares = plan::ShareLive(
      job.config().gather_limits().live_max, options.padded(training.total_elements()),
      frozen == nullptr ? 0 : options.padded(frozen->total_elements()));
  const auto raise = [&](const plan::ParamLayout& layout, int64_t& share) {
    if (const int64_t leaf = plan::LargestLeaf(layout, leaf_modules); leaf > 0) {
      share = std::max(share, leaf + std::lcm(options.grain(), options.bucket_multiple));
    }
  };
  raise(training, shares.training);
  if (frozen != nullptr) {
    raise(*frozen, shares.frozen);
  }
  return shares;
}

// Behind CreateSync.
void Engine::Impl::ReduceByUnits() {
  if (state.live == nullptr) {
    return;
  }
  const std::vector<plan::FlatRange> units = plan::WholeUnits(*state.shards, state.units);
  if (!units.empty()) {
    reducer->UseUnits(EntriesOf(*state.flat, units));
    state.live->OnUnitEnd([this](size_t unit) { reducer->EndUnit(unit); });
  }
}

absl::Status Engine::Impl::Explained(const absl::Status& failure) {
  if (failure.ok() || state.live == nullptr || job.state().store == nullptr ||
      !comm::AreRanksDifferent(failure) || std::exchange(explained, true)) {
    return failure;
  }
  const RankTrace mine{.reads = state.live->reads(),
                       .frozen_reads = state.frozen == nullptr ? std::vector<int64_t>{}
                                                               : state.frozen->live->reads(),
                       .gradients = reducer->readiness()};
  const std::string prefix = absl::StrFormat("ranks-differ/%d/%d", job.group().epoch(), state.step);
  return NameDifference(failure, state, mine,
                        {*job.state().store, prefix, job.rank(), job.world_size()},
                        job.config().gather_limits().live_max);
}

}  // namespace dtrain
