// Which elements are updated alike: parameters by their settings, cut to what a rank owns. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "dtrain/optimizer_config.h"
#include "runtime/plan/layout.h"
#include "runtime/plan/shard_plan.h"

namespace dtrain {

// A range of the flat buffers with one set of settings.
struct SettingsRange {
  plan::FlatRange flat;
  int settings = 0;  // Of UpdateGroups::settings.
  int entry = -1;    // Of the layout; -1: several.
  bool operator==(const SettingsRange&) const = default;
};

struct UpdateGroups {
  std::vector<ParamSettings> settings;  // All that occur, once.
  std::vector<SettingsRange> ranges;    // In the layout's order.
};

// `by_parameter`: a range is one parameter, without the gap behind it; else neighbours with equal
// settings are one range (gaps hold zeros and stay zero). `frozen`: names of the parameters that
// are not trained. InvalidArgument: a pattern of a group or of no_weight_decay names no parameter.
absl::StatusOr<UpdateGroups> GroupParameters(const plan::ParamLayout& layout,
                                             const OptimizerConfig& optimizer, bool by_parameter,
                                             const std::vector<std::string>& frozen = {});

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
