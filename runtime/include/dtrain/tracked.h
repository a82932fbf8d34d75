// State of the program that belongs into a checkpoint: small (960 KiB in all), as JSON.
#pragma once

#include "absl/status/status.h"
#include "base/json.h"

namespace dtrain {

// State that Checkpointer::Track follows: a data loader's position, counters, a program's own
// state. The engine also uses it to undo a step that failed. The same calls happen on every rank;
// each rank's state is saved and restored on its own.
class Tracked {
 public:
  virtual ~Tracked() = default;
  // The state now. Must be cheap (called at every step's start for data).
  virtual Json SaveState() const = 0;
  // Puts `state` (an earlier SaveState) in force again.
  virtual absl::Status RestoreState(const Json& state) = 0;
};

}  // namespace dtrain
