// The program's states that checkpoints hold beside the engines' (Checkpointer::Track): small, each
// rank's its own, as JSON.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "base/json.h"
#include "dtrain/tracked.h"

namespace dtrain {

class TrackedStates {
 public:
  // False: the name is taken. REQUIRES: `state` outlives this object.
  bool Add(const std::string& name, Tracked& state) { return states_.emplace(name, &state).second; }

  // All states now, by name.
  Json Save() const;
  // InvalidArgument: they take more than a rank's record has room for.
  absl::Status CheckBytes() const;
  // Puts back what `all` has, which is from `source`; what it lacks starts as new, with a warning.
  absl::Status Restore(const Json& all, const std::string& source) const;

 private:
  std::map<std::string, Tracked*> states_;
};

}  // namespace dtrain
