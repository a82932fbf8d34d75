// The line and the row of a goal, as bench/report.py has them.
#pragma once

#include <string>

#include "base/json.h"

namespace dtrain::bench {

// Prints `goal NAME measured VALUE target OP NUMBER ok`, or `short`, and gives the row of the
// results file: {"name", "measured", "op", "target", "ok", "verdict"}. `op`: ">=" or "<=".
Json JudgeGoal(const std::string& name, double measured, const std::string& op, double target);

// The same for a share of a probe's or a copy's rate. Where the share is above 1 the probe was the
// slower of the two and bounds nothing: the verdict is "no bound", neither met nor missed.
Json JudgeShare(const std::string& name, double share, double target);

}  // namespace dtrain::bench
