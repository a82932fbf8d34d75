// NCCL reads environment variables: those that say what a configuration says of the network. Pure.
#pragma once

#include <vector>

#include "base/job_env.h"
#include "base/system/library_variables.h"
#include "dtrain/config.h"

namespace dtrain::plan {

// One for each key that was given, except where `environment` has the variable already. What was
// not given is left to NCCL, whose defaults are others than dtrain's.
std::vector<LibraryVariable> NcclVariables(const Config& config, const Environment& environment);

// How often NCCL has its RDMA devices repeat what is lost, by `environment`; NCCL's own defaults
// (2.23 and later) where it has nothing, or no number.
struct NcclRetries {
  int timeout = 20;
  int retries = 7;
};
NcclRetries NcclRetriesIn(const Environment& environment);

}  // namespace dtrain::plan
