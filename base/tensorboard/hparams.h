// What TensorBoard shows of a run besides curves: its hyperparameters (HPARAMS tab) and its
// configuration (TEXT tab). Pure.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "base/json.h"

namespace dtrain {

// Serialized Event messages for TensorBoardWriter.
//
// The values by which the run may be compared with others. Members of objects are named
// "outer.inner"; lists are shown as JSON; null and empty objects are left out. `group` names the
// run: its attempts are shown as one.
std::string HyperparametersEvent(double wall_time, absl::string_view group, const Json& values);
// The run has taken its last step.
std::string RunDoneEvent(double wall_time);
// Markdown under the name `tag`.
std::string TextEvent(double wall_time, absl::string_view tag, absl::string_view markdown);

// A Markdown table of a configuration as RUN_DIR/config.json holds it: key, value, where it comes
// from (its member "origins").
std::string ConfigTable(const Json& config);
// A Markdown table of the members of `object`, those of its objects by "outer.inner".
std::string MembersTable(const Json& object);

}  // namespace dtrain
