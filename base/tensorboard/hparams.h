// The parts of a run that TensorBoard shows besides curves: hyperparameters (HPARAMS tab) and
// configuration (TEXT tab). Pure.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "base/json.h"

namespace dtrain {

// The first functions give serialized Event messages for TensorBoardWriter.
//
// The hyperparameters of the run. Members of objects are named "outer.inner"; lists are shown as
// JSON; null and empty objects are left out. `group` names the run, whose attempts are shown as
// one.
std::string HyperparametersEvent(double wall_time, absl::string_view group, const Json& values);
// Marks the run as finished.
std::string RunDoneEvent(double wall_time);
// Markdown under the name `tag`.
std::string TextEvent(double wall_time, absl::string_view tag, absl::string_view markdown);

// A Markdown table of a configuration as RUN_DIR/config.json holds it: key, value and origin (its
// member "origins").
std::string ConfigTable(const Json& config);
// A Markdown table of the members of `object`, those of its objects by "outer.inner".
std::string MembersTable(const Json& object);

}  // namespace dtrain
