// The environment variables of NCCL that dtrain sets.
#pragma once

#include <string>
#include <vector>

#include "base/job_env.h"

namespace dtrain::comm {

struct NcclVariable {
  std::string name;
  std::string value;
  std::string reason;  // Half a sentence: "because ...".
};

// The variables that NCCL needs and `environment` does not have. Pure.
std::vector<NcclVariable> MissingNcclVariables(const Environment& environment);

// Sets those in this process and logs each with its reason. REQUIRES: NCCL has not been called yet:
// it reads a variable once.
void SetNcclVariables();

}  // namespace dtrain::comm
