#include "comm/nccl/nccl_environment.h"

#include <stdlib.h>

#include "base/log.h"

namespace dtrain::comm {

std::vector<NcclVariable> MissingNcclVariables(const Environment& environment) {
  // CUDA_DEVICE_MAX_CONNECTIONS is left alone: streams that share one of CUDA's queues are in the
  // order of the program too, which is the same on all ranks.
  const std::vector<NcclVariable> wanted = {
      {"NCCL_LAUNCH_ORDER_IMPLICIT", "1",
       "because two communicators whose kernels start in different orders on two GPUs can wait for "
       "each other for ever"}};
  std::vector<NcclVariable> missing;
  for (const NcclVariable& variable : wanted) {
    if (environment.count(variable.name) == 0) {
      missing.push_back(variable);
    }
  }
  return missing;
}

void SetNcclVariables() {
  for (const NcclVariable& variable : MissingNcclVariables(ReadEnvironment())) {
    setenv(variable.name.c_str(), variable.value.c_str(), /*overwrite=*/0);
    DT_LOG(Info) << "setting " << variable.name << "=" << variable.value << ", " << variable.reason;
  }
}

}  // namespace dtrain::comm
