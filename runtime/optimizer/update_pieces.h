// The elements that are updated alike: parameters by their settings, cut to what a rank owns. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "dtrain/optimizer_config.h"
#include "runtime/plan/layout/layout.h"
#include "runtime/plan/layout/shard_plan.h"

namespace dtrain {

// A range of the flat buffers with one set of settings.
struct SettingsRange {
  plan::FlatRange flat;
  int settings = 0;  // Index in UpdateGroups::settings.
  int entry = -1;    // Index in the layout; -1: several.
  bool operator==(const SettingsRange&) const = default;
};

struct UpdateGroups {
  std::vector<ParamSettings> settings;  // All that occur.
  std::vector<SettingsRange> ranges;    // In the layout's order.
  // Patterns of no_weight_decay that name no parameter of this engine.
  std::vector<std::string> unmatched_decay;
};

struct GroupingOptions {
  // A range is one parameter, without the gap behind it; else neighbours with equal settings are
  // one range (gaps hold zeros and stay zero).
  bool by_parameter = false;
  std::string engine = {};               // EngineOptions::name.
  std::string module = {};               // The class of what it trains, for messages.
  std::vector<std::string> frozen = {};  // Names of the parameters that are not trained.
  // So many of the optimizer's groups, the first ones, are of the engine's own settings.
  size_t own_groups = 0;
};

// With OptimizerConfig::skip_unused ranges are of one parameter each, and so are settings: those of
// the layout's entry i are at i. InvalidArgument: a pattern of a group names no parameter, or one
// of no_weight_decay where the engine has no name (else another engine may have the parameter).
absl::StatusOr<UpdateGroups> GroupParameters(const plan::ParamLayout& layout,
                                             const OptimizerConfig& optimizer,
                                             const GroupingOptions& options);

// `elements` from `flat` on in the values, from `local` on in the states of the rank that owns
// them.
struct UpdatePiece {
  int64_t flat = 0;
  int64_t local = 0;
  int64_t elements = 0;
  int settings = 0;
  int entry = -1;
  bool operator==(const UpdatePiece&) const = default;
};

// The pieces of one owned range.
std::vector<UpdatePiece> UpdatePieces(const UpdateGroups& groups, const plan::OwnedRange& owned);

}  // namespace dtrain
