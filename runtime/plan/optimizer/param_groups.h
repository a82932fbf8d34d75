// optimizer.param_groups and engines from their JSON, and which settings an optimizer has. Private
// to runtime.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/json.h"
#include "dtrain/optimizer_config.h"

namespace dtrain::plan {

// The settings that the optimizer knows, of lr, weight_decay, betas and eps.
std::vector<absl::string_view> SettingsOf(OptimizerConfig::Kind kind);

// `settings`: those that the optimizer knows, of lr, weight_decay, betas and eps. InvalidArgument
// names the entry, the value and what is allowed.
absl::StatusOr<std::vector<ParamGroupConfig>> ParseParamGroups(
    const Json& list, absl::Span<const absl::string_view> settings);

// The settings of each engine by its name. `settings`: as above. InvalidArgument names the key, the
// value and what is allowed.
absl::StatusOr<std::map<std::string, EngineSettings, std::less<>>> ParseEngines(
    const Json& engines, absl::Span<const absl::string_view> settings);

}  // namespace dtrain::plan
