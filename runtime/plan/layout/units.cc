#include "runtime/plan/layout/units.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "dtrain/optimizer_config.h"

namespace dtrain::plan {
namespace {

constexpr int kNoUnit = -1;
constexpr size_t kListedMax = 8;  // Names in a message.

// By entry of a layout: the unit that it belongs to.
using Membership = std::vector<int>;

// The names by which a unit may list a parameter: "a.b.weight", and its modules "a.b" and "a".
std::vector<absl::string_view> NamesFor(absl::string_view parameter) {
  std::vector<absl::string_view> names = {parameter};
  for (size_t dot = parameter.rfind('.'); dot != absl::string_view::npos;
       dot = dot == 0 ? absl::string_view::npos : parameter.rfind('.', dot - 1)) {
    names.push_back(parameter.substr(0, dot));
  }
  return names;
}

// The units asked for: first those of patterns, then one for each leaf module.
struct Wanted {
  absl::Span<const ParamLayout* const> layouts;
  absl::Span<const std::vector<std::string>> units;
  absl::Span<const std::string> leaves;

  size_t count() const { return units.size() + leaves.size(); }
  std::string NameOf(size_t unit) const {
    return unit < units.size() ? absl::StrFormat("EngineOptions::units[%d]", unit)
                               : absl::StrFormat("zero_optimization.leaf_module, \"%s\"",
                                                 leaves[unit - units.size()]);
  }
};

bool IsWithin(absl::string_view parameter, absl::string_view module) {
  const std::vector<absl::string_view> names = NamesFor(parameter);
  return module.empty() || std::find(names.begin() + 1, names.end(), module) != names.end();
}

// The modules that hold parameters, in registration order. If a model has none, its parameters.
std::string WhatThereIs(absl::Span<const ParamLayout* const> layouts) {
  std::vector<std::string> modules;
  std::vector<std::string> parameters;
  const auto add = [](absl::string_view name, std::vector<std::string>& to) {
    if (to.size() <= kListedMax && std::find(to.begin(), to.end(), name) == to.end()) {
      to.emplace_back(name);
    }
  };
  for (const ParamLayout* const layout : layouts) {
    for (size_t entry = layout->entries().size(); entry-- > 0;) {
      const std::vector<absl::string_view> names = NamesFor(layout->entries()[entry].name);
      add(names.front(), parameters);
      std::for_each(names.rbegin(), names.rend() - 1,
                    [&](absl::string_view name) { add(name, modules); });
    }
  }
  std::vector<std::string>& listed = modules.empty() ? parameters : modules;
  if (listed.size() > kListedMax) {
    listed.back() = "...";
  }
  return absl::StrJoin(listed, ", ");
}

// The names of all modules that hold parameters, and of all parameters, in registration order.
std::vector<std::string> AllNames(absl::Span<const ParamLayout* const> layouts) {
  std::vector<std::string> all;
  for (const ParamLayout* const layout : layouts) {
    for (size_t entry = layout->entries().size(); entry-- > 0;) {
      const std::vector<absl::string_view> names = NamesFor(layout->entries()[entry].name);
      for (auto name = names.rbegin(); name != names.rend(); ++name) {
        if (std::find(all.begin(), all.end(), *name) == all.end()) {
          all.emplace_back(*name);
        }
      }
    }
  }
  return all;
}

// Puts the parameters that `pattern` names into `unit`.
absl::Status Join(const Wanted& wanted, const std::string& pattern, size_t unit,
                  std::vector<Membership>& members) {
  const absl::Span<const ParamLayout* const> layouts = wanted.layouts;
  bool found = false;
  for (size_t l = 0; l < layouts.size(); ++l) {
    const std::vector<LayoutEntry>& entries = layouts[l]->entries();
    for (size_t entry = 0; entry < entries.size(); ++entry) {
      const std::vector<absl::string_view> names = NamesFor(entries[entry].name);
      if (std::none_of(names.begin(), names.end(),
                       [&](absl::string_view name) { return MatchesPattern(pattern, name); })) {
        continue;
      }
      found = true;
      int& member = members[l][entry];
      if (member != kNoUnit && member != static_cast<int>(unit)) {
        return absl::InvalidArgumentError(
            absl::StrFormat("parameter %s is in %s and in %s (\"%s\"); remove it from one of them",
                            entries[entry].name, wanted.NameOf(static_cast<size_t>(member)),
                            wanted.NameOf(unit), pattern));
      }
      member = static_cast<int>(unit);
    }
  }
  if (!found) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: \"%s\" names no module with parameters of its own and no parameter of the model (a "
        "shared parameter has the name that is registered first); nearest: %s; there are %s",
        wanted.NameOf(unit), pattern, absl::StrJoin(NearestNames(pattern, AllNames(layouts)), ", "),
        WhatThereIs(layouts)));
  }
  return absl::OkStatus();
}

// Puts a leaf module into `unit`, unless another unit has all of it.
absl::Status JoinLeaf(const Wanted& wanted, const std::string& module, size_t unit,
                      std::vector<Membership>& members) {
  int* first = nullptr;                // The membership of its first parameter.
  bool is_even = true;                 // All are in one unit, or in none.
  const LayoutEntry* taken = nullptr;  // One that is in a unit,
  int taker = kNoUnit;                 // and in which.
  std::vector<int*> all;
  for (size_t l = 0; l < wanted.layouts.size(); ++l) {
    const std::vector<LayoutEntry>& entries = wanted.layouts[l]->entries();
    for (size_t entry = 0; entry < entries.size(); ++entry) {
      if (!IsWithin(entries[entry].name, module)) {
        continue;
      }
      int& member = members[l][entry];
      all.push_back(&member);
      first = first == nullptr ? &member : first;
      is_even = is_even && member == *first;
      if (taken == nullptr && member != kNoUnit) {
        taken = &entries[entry];
        taker = member;
      }
    }
  }
  if (!is_even) {
    return absl::InvalidArgumentError(
        absl::StrFormat("parameter %s is in %s and in %s; remove it from one of them", taken->name,
                        wanted.NameOf(static_cast<size_t>(taker)), wanted.NameOf(unit)));
  }
  for (int* const member : all) {
    *member = taken == nullptr ? static_cast<int>(unit) : *member;
  }
  return absl::OkStatus();
}

// The elements of `unit`; none when it has no parameter here.
absl::StatusOr<FlatRange> RangeOf(const Wanted& wanted, const ParamLayout& layout,
                                  const Membership& members, size_t unit) {
  const auto is_member = [&](int member) { return member == static_cast<int>(unit); };
  const std::vector<LayoutEntry>& entries = layout.entries();
  const auto first = std::find_if(members.begin(), members.end(), is_member);
  if (first == members.end()) {
    return FlatRange{};
  }
  const auto end = std::find_if(members.rbegin(), members.rend(), is_member).base();
  const auto entry_at = [&](auto at) { return entries.begin() + (at - members.begin()); };
  if (const auto other = std::find_if_not(first, end, is_member); other != end) {
    // The layout's order is that of registration, reversed.
    const auto before = std::find_if(other, end, is_member);
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s is not a run of neighbouring parameters: %s is registered between %s and %s; add it to "
        "the unit, or make two units",
        wanted.NameOf(unit), entry_at(other)->name, entry_at(before)->name,
        entry_at(other - 1)->name));
  }
  return FlatRange{entry_at(first)->offset,
                   end == members.end() ? layout.total_elements() : entry_at(end)->offset};
}

}  // namespace

absl::StatusOr<std::vector<std::vector<FlatRange>>> FindUnits(
    absl::Span<const ParamLayout* const> layouts, absl::Span<const std::vector<std::string>> units,
    absl::Span<const std::string> leaves) {
  const Wanted wanted{layouts, units, leaves};
  std::vector<Membership> members;
  for (const ParamLayout* const layout : layouts) {
    members.emplace_back(layout->entries().size(), kNoUnit);
  }
  for (size_t unit = 0; unit < units.size(); ++unit) {
    if (units[unit].empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(wanted.NameOf(unit), " is empty; name at least one module or parameter"));
    }
    for (const std::string& pattern : units[unit]) {
      DT_RETURN_IF_ERROR(Join(wanted, pattern, unit, members));
    }
  }
  for (size_t leaf = 0; leaf < leaves.size(); ++leaf) {
    DT_RETURN_IF_ERROR(JoinLeaf(wanted, leaves[leaf], units.size() + leaf, members));
  }
  std::vector<std::vector<FlatRange>> ranges(layouts.size());
  for (size_t l = 0; l < layouts.size(); ++l) {
    for (size_t unit = 0; unit < wanted.count(); ++unit) {
      DT_ASSIGN_OR_RETURN(const FlatRange range, RangeOf(wanted, *layouts[l], members[l], unit));
      if (range.elements() > 0) {
        ranges[l].push_back(range);
      }
    }
    std::sort(ranges[l].begin(), ranges[l].end(),
              [](const FlatRange& a, const FlatRange& b) { return a.begin < b.begin; });
  }
  return ranges;
}

int64_t LargestLeaf(const ParamLayout& layout, absl::Span<const std::string> leaves) {
  int64_t largest = 0;
  for (const std::string& leaf : leaves) {
    std::optional<int64_t> begin;
    for (const LayoutEntry& entry : layout.entries()) {
      if (IsWithin(entry.name, leaf)) {
        begin = begin.value_or(entry.offset);
        largest = std::max(largest, entry.offset + entry.elements - *begin);
      }
    }
  }
  return largest;
}

std::vector<FlatRange> WholeUnits(const ShardPlan& shards, absl::Span<const FlatRange> units) {
  std::vector<FlatRange> whole;
  for (const FlatRange& unit : units) {
    const BucketSpan span =
        shards.BucketsOf({unit.begin, std::min(unit.end, shards.padded_elements())});
    // Its last elements may be in the bucket behind its own.
    const auto own =
        std::count_if(shards.buckets().begin() + span.first, shards.buckets().begin() + span.last,
                      [&](const FlatRange& bucket) {
                        return bucket.end <= unit.end || unit.end >= shards.total_elements();
                      });
    if (own <= 1) {
      whole.push_back(unit);
    }
  }
  return whole;
}

}  // namespace dtrain::plan
