#include "runtime/optimizer/update_pieces.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace dtrain {
namespace {

bool MatchesOne(const std::string& pattern, const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return MatchesPattern(pattern, name); });
}

// The place where a group was given.
std::string NameOfGroup(size_t group, size_t own_groups) {
  return group < own_groups
             ? absl::StrFormat("param_groups[%d] of the engine's own settings", group)
             : absl::StrFormat("optimizer.param_groups[%d]", group - own_groups);
}

// A pattern that matches nothing is a mistake that would train with other settings than meant.
absl::Status CheckPatterns(const OptimizerConfig& optimizer,
                           const std::vector<std::string>& trained, const GroupingOptions& options,
                           std::vector<std::string>& unmatched_decay) {
  const std::vector<std::string>& frozen = options.frozen;
  for (const std::string& pattern : optimizer.no_weight_decay) {
    // Frozen ones are not decayed, so a pattern for them is right.
    if (MatchesOne(pattern, trained) || MatchesOne(pattern, frozen)) {
      continue;
    }
    unmatched_decay.push_back(pattern);
    if (options.engine.empty()) {
      std::vector<std::string> all = trained;
      all.insert(all.end(), frozen.begin(), frozen.end());
      return absl::InvalidArgumentError(absl::StrFormat(
          "optimizer.no_weight_decay: \"%s\" names no parameter of the model; nearest: %s (* "
          "stands for any text)",
          pattern, absl::StrJoin(NearestNames(pattern, all), ", ")));
    }
  }
  for (size_t group = 0; group < optimizer.groups.size(); ++group) {
    if (!IsFor(optimizer.groups[group], options.engine)) {
      continue;
    }
    for (const std::string& pattern : optimizer.groups[group].params) {
      if (!MatchesOne(pattern, trained)) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "%s.params: \"%s\" names no trainable parameter of %s%s; "
            "nearest: %s (* stands for any text). A group for one of several engines gives its "
            "name: \"engine\": \"NAME\" (EngineOptions::name)",
            NameOfGroup(group, options.own_groups), pattern,
            options.engine.empty() ? absl::StrCat("the engine of ", options.module)
                                   : absl::StrCat("engine \"", options.engine, "\""),
            MatchesOne(pattern, frozen) ? ", only frozen ones" : "",
            absl::StrJoin(NearestNames(pattern, trained), ", ")));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<UpdateGroups> GroupParameters(const plan::ParamLayout& layout,
                                             const OptimizerConfig& optimizer,
                                             const GroupingOptions& options) {
  std::vector<std::string> trained;  // In the order of registration, which a layout reverses.
  for (auto entry = layout.entries().rbegin(); entry != layout.entries().rend(); ++entry) {
    trained.push_back(entry->name);
  }
  UpdateGroups groups;
  DT_RETURN_IF_ERROR(CheckPatterns(optimizer, trained, options, groups.unmatched_decay));
  const bool by_parameter = options.by_parameter || optimizer.skip_unused;
  for (size_t i = 0; i < layout.entries().size(); ++i) {
    const plan::LayoutEntry& entry = layout.entries()[i];
    const ParamSettings settings = optimizer.SettingsFor(entry.name, entry.shape, options.engine);
    auto known = optimizer.skip_unused
                     ? groups.settings.end()
                     : std::find(groups.settings.begin(), groups.settings.end(), settings);
    if (known == groups.settings.end()) {
      known = groups.settings.insert(known, settings);
    }
    const auto index = static_cast<int>(known - groups.settings.begin());
    const int64_t end = entry.offset + entry.elements;
    if (by_parameter || groups.ranges.empty() || groups.ranges.back().settings != index) {
      groups.ranges.push_back(
          {{entry.offset, end}, index, by_parameter ? static_cast<int>(i) : -1});
    }
    groups.ranges.back().flat.end = end;
  }
  return groups;
}

std::vector<UpdatePiece> UpdatePieces(const UpdateGroups& groups, const plan::OwnedRange& owned) {
  std::vector<UpdatePiece> pieces;
  for (const SettingsRange& range : groups.ranges) {
    const plan::FlatRange piece = plan::Intersect(range.flat, owned.flat);
    if (piece.elements() > 0) {
      pieces.push_back({piece.begin, owned.local_of(piece.begin), piece.elements(), range.settings,
                        range.entry});
    }
  }
  return pieces;
}

}  // namespace dtrain
