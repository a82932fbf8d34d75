// What a configuration says of the network, for NCCL: it reads environment variables. Pure.
#pragma once

#include <string>
#include <vector>

#include "base/job_env.h"
#include "dtrain/config.h"

namespace dtrain::plan {

struct NcclVariable {
  std::string name;
  std::string value;
  std::string reason;  // Half a sentence: "because ...".
};

// One for each key that was given, except where `environment` has the variable already. What was
// not given is left to NCCL, whose defaults are others than dtrain's.
std::vector<NcclVariable> NcclVariables(const Config& config, const Environment& environment);

// How often NCCL has its RDMA devices repeat what is lost, by `environment`; NCCL's own defaults
// (2.23 and later) where it has nothing, or no number.
struct NcclRetries {
  int timeout = 20;
  int retries = 7;
};
NcclRetries NcclRetriesIn(const Environment& environment);

}  // namespace dtrain::plan
