#include "runtime/engine/rank_difference.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/deadline.h"
#include "base/status.h"
#include "runtime/plan/layout/units.h"

namespace dtrain {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(3);  // For ranks that may never fail.

// Weights that are shared out together.
struct WeightSet {
  const plan::ParamLayout& layout;
  const plan::ShardPlan& shards;
  const std::vector<plan::FlatRange>& units;
};

size_t EntryAt(const plan::ParamLayout& layout, int64_t element) {
  const std::vector<plan::LayoutEntry>& entries = layout.entries();
  const auto behind = std::upper_bound(
      entries.begin(), entries.end(), element,
      [](int64_t at, const plan::LayoutEntry& entry) { return at < entry.offset; });
  return static_cast<size_t>(std::max<std::ptrdiff_t>(1, behind - entries.begin()) - 1);
}

// The module that holds both parameters; "": none but the model.
std::string ModuleOfBoth(const std::string& a, const std::string& b) {
  const std::vector<std::string> first = absl::StrSplit(a, '.');
  const std::vector<std::string> second = absl::StrSplit(b, '.');
  std::vector<std::string> common;
  for (size_t i = 0; i + 1 < std::min(first.size(), second.size()) && first[i] == second[i]; ++i) {
    common.push_back(first[i]);
  }
  return absl::StrJoin(common, ".");
}

const plan::FlatRange* UnitOf(absl::Span<const plan::FlatRange> units, int64_t element) {
  const auto found = std::find_if(units.begin(), units.end(), [&](const plan::FlatRange& unit) {
    return unit.begin <= element && element < unit.end;
  });
  return found == units.end() ? nullptr : &*found;
}

// Says what to do where one rank comes to element `a` and another to `b`.
std::string Remedy(const WeightSet& set, int64_t a, int64_t b, int64_t live_max) {
  const std::vector<plan::FlatRange> whole = plan::WholeUnits(set.shards, set.units);
  for (const int64_t element : {a, b}) {
    if (UnitOf(whole, element) != nullptr) {
      return "in the first micro-batch and the first evaluation every rank must use a part of each "
             "unit: add to the unit a weight that all ranks use, as that of a router";
    }
    if (const plan::FlatRange* const cut = UnitOf(set.units, element); cut != nullptr) {
      return absl::StrFormat(
          "the unit of these weights, %d elements, comes in parts, because it is larger than "
          "zero_optimization.stage3_max_live_parameters (%d) allows; raise that, or name the "
          "module "
          "in zero_optimization.leaf_module.names",
          cut->elements(), live_max);
    }
  }
  const std::string module = ModuleOfBoth(set.layout.entries()[EntryAt(set.layout, a)].name,
                                          set.layout.entries()[EntryAt(set.layout, b)].name);
  return absl::StrFormat(
      "where ranks use different weights, as in a mixture of experts, name the module that holds "
      "them%s in EngineOptions::units or zero_optimization.leaf_module.names, so that every rank "
      "gathers and reduces it as a whole",
      module.empty() ? "" : absl::StrCat(" (", module, ")"));
}

std::string Sentence(const char* verb, const TraceOf& a, const std::string& of_a, const TraceOf& b,
                     const std::string& of_b) {
  return absl::StrFormat("rank %d %s %s where rank %d %s %s", a.rank, verb, of_a, b.rank, verb,
                         of_b);
}

std::optional<std::string> DifferentReads(const WeightSet& set, const TraceOf& a,
                                          const std::vector<int64_t>& of_a, const TraceOf& b,
                                          const std::vector<int64_t>& of_b, int64_t live_max) {
  const auto is_element = [&](int64_t at) { return at >= 0 && at < set.shards.padded_elements(); };
  for (size_t i = 0; i < std::min(of_a.size(), of_b.size()); ++i) {
    const int64_t x = of_a[i];
    const int64_t y = of_b[i];
    if (!is_element(x) || !is_element(y)) {
      return std::nullopt;
    }
    if (set.shards.BucketsOf({x, x + 1}) != set.shards.BucketsOf({y, y + 1})) {
      const auto name = [&](int64_t at) {
        return set.layout.entries()[EntryAt(set.layout, at)].name;
      };
      return absl::StrCat(Sentence("read", a, name(x), b, name(y)), ": ",
                          Remedy(set, x, y, live_max));
    }
  }
  return std::nullopt;
}

std::optional<std::string> DifferentGradients(const WeightSet& set, const TraceOf& a,
                                              const TraceOf& b, int64_t live_max) {
  const std::vector<plan::LayoutEntry>& entries = set.layout.entries();
  const std::vector<int>& of_a = a.trace.gradients;
  const std::vector<int>& of_b = b.trace.gradients;
  const auto is_entry = [&](int at) { return at >= 0 && at < static_cast<int>(entries.size()); };
  for (size_t i = 0; i < std::min(of_a.size(), of_b.size()); ++i) {
    if (!is_entry(of_a[i]) || !is_entry(of_b[i])) {
      return std::nullopt;
    }
    if (of_a[i] != of_b[i]) {
      const plan::LayoutEntry& x = entries[static_cast<size_t>(of_a[i])];
      const plan::LayoutEntry& y = entries[static_cast<size_t>(of_b[i])];
      return absl::StrCat(Sentence("had a gradient of", a, x.name, b, y.name), ": ",
                          Remedy(set, x.offset, y.offset, live_max));
    }
  }
  return std::nullopt;
}

}  // namespace

Json RankTrace::ToJson() const {
  return {{"reads", reads}, {"frozen_reads", frozen_reads}, {"gradients", gradients}};
}

absl::StatusOr<RankTrace> RankTrace::FromJson(const Json& json) {
  RankTrace trace;
  const auto read = [&json](const char* key, auto& into) {
    if (!json.is_object() || !json.contains(key) || !json[key].is_array() ||
        !std::all_of(json[key].begin(), json[key].end(),
                     [](const Json& item) { return item.is_number_integer(); })) {
      return false;
    }
    json[key].get_to(into);
    return true;
  };
  return read("reads", trace.reads) && read("frozen_reads", trace.frozen_reads) &&
                 read("gradients", trace.gradients)
             ? absl::StatusOr<RankTrace>(std::move(trace))
             : absl::InvalidArgumentError("this is no rank's trace");
}

std::optional<std::string> DescribeDifference(const EngineState& state, const TraceOf& a,
                                              const TraceOf& b, int64_t live_max) {
  const WeightSet training{state.flat->layout(), *state.shards, state.units};
  if (auto text = DifferentReads(training, a, a.trace.reads, b, b.trace.reads, live_max)) {
    return text;
  }
  if (state.frozen != nullptr) {
    const WeightSet frozen{state.frozen->flat->layout(), *state.frozen->shards,
                           state.frozen->units};
    if (auto text =
            DifferentReads(frozen, a, a.trace.frozen_reads, b, b.trace.frozen_reads, live_max)) {
      return text;
    }
  }
  return DifferentGradients(training, a, b, live_max);
}

absl::Status NameDifference(const absl::Status& failure, const EngineState& state,
                            const RankTrace& mine, const TraceExchange& exchange,
                            int64_t live_max) {
  const Deadline deadline = Deadline::After(kPatience);
  const auto key = [&exchange](int rank) { return comm::RankKey(exchange.prefix, rank); };
  exchange.store.Set(key(exchange.rank), DumpJson(mine.ToJson()), deadline).IgnoreError();
  for (int other = 0; other < exchange.size; ++other) {
    if (other == exchange.rank) {
      continue;
    }
    const auto text = exchange.store.Get(key(other), deadline);
    const auto json = text.ok() ? ParseJson(*text, "a rank's trace") : text.status();
    const auto theirs = json.ok() ? RankTrace::FromJson(*json) : json.status();
    if (!theirs.ok()) {
      continue;
    }
    const TraceOf me{exchange.rank, mine};
    const TraceOf them{other, *theirs};
    const auto difference = other < exchange.rank ? DescribeDifference(state, them, me, live_max)
                                                  : DescribeDifference(state, me, them, live_max);
    if (difference.has_value()) {
      // Also on a rank that another one's end has told.
      return absl::FailedPreconditionError(absl::StrCat(failure.message(), "; ", *difference));
    }
  }
  return failure;
}

}  // namespace dtrain
