// The options of the group of all ranks, from a configuration. Pure.
#pragma once

#include "comm/group.h"
#include "dtrain/config.h"

namespace dtrain {

// Transport, timeouts, order of sums; who the rank is and where the others are is the caller's.
comm::GroupOptions GroupOptionsFrom(const Config& config);

}  // namespace dtrain
