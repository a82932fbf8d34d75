// The environment variables that pass a configuration's network settings to NCCL. Pure.
#pragma once

#include <vector>

#include "base/job_env.h"
#include "base/system/library_variables.h"
#include "dtrain/config.h"

namespace dtrain::plan {

// One variable for each key that was given, except those that `environment` has already. Other keys
// are left to NCCL, whose defaults differ from dtrain's.
std::vector<LibraryVariable> NcclVariables(const Config& config, const Environment& environment);

// How often NCCL's RDMA devices repeat lost packets, according to `environment`. If it has no
// number, NCCL's own defaults (2.23 and later) hold.
struct NcclRetries {
  int timeout = 20;
  int retries = 7;
};
NcclRetries NcclRetriesIn(const Environment& environment);

}  // namespace dtrain::plan
