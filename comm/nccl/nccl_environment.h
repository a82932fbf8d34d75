// The environment variables of NCCL that dtrain sets.
#pragma once

#include <vector>

#include "base/job_env.h"
#include "base/system/library_variables.h"

namespace dtrain::comm {

// The variables that NCCL needs and that `environment` does not have. Pure.
std::vector<LibraryVariable> MissingNcclVariables(const Environment& environment);

// Sets those in this process and logs each with its reason. REQUIRES: NCCL has not been called yet,
// because it reads a variable once.
void SetNcclVariables();

}  // namespace dtrain::comm
