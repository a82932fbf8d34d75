#include "runtime/optimizer/update_pieces.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"

namespace dtrain {
namespace {

// A pattern that matches nothing is a mistake that would train with other settings than meant.
absl::Status CheckGroups(const plan::ParamLayout& layout, const OptimizerConfig& optimizer,
                         const GroupingOptions& options) {
  for (size_t group = 0; group < optimizer.groups.size(); ++group) {
    if (!IsFor(optimizer.groups[group], options.engine)) {
      continue;
    }
    for (const std::string& pattern : optimizer.groups[group].params) {
      const auto& entries = layout.entries();
      if (std::none_of(entries.begin(), entries.end(), [&](const plan::LayoutEntry& entry) {
            return MatchesPattern(pattern, entry.name);
          })) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "optimizer.param_groups[%d].params: \"%s\" names no trainable parameter of %s; they "
            "are called as %s (* stands for any text). A group for one of several engines gives "
            "its name: \"engine\": \"NAME\" (EngineOptions::name)",
            group, pattern,
            options.engine.empty() ? absl::StrCat("the engine of ", options.module)
                                   : absl::StrCat("engine \"", options.engine, "\""),
            entries.back().name));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<UpdateGroups> GroupParameters(const plan::ParamLayout& layout,
                                             const OptimizerConfig& optimizer,
                                             const GroupingOptions& options) {
  DT_RETURN_IF_ERROR(CheckGroups(layout, optimizer, options));
  const bool by_parameter = options.by_parameter || optimizer.skip_unused;
  UpdateGroups groups;
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
