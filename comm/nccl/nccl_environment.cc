#include "comm/nccl/nccl_environment.h"

namespace dtrain::comm {

std::vector<LibraryVariable> MissingNcclVariables(const Environment& environment) {
  // CUDA_DEVICE_MAX_CONNECTIONS is left as it is. Streams that share one of CUDA's queues are in
  // the order of the program too, which is the same on all ranks.
  const std::vector<LibraryVariable> wanted = {
      {"NCCL_LAUNCH_ORDER_IMPLICIT", "1",
       "because two communicators whose kernels start in different orders on two GPUs can wait for "
       "each other for ever"}};
  std::vector<LibraryVariable> missing;
  for (const LibraryVariable& variable : wanted) {
    if (environment.count(variable.name) == 0) {
      missing.push_back(variable);
    }
  }
  return missing;
}

void SetNcclVariables() { SetLibraryVariables(MissingNcclVariables(ReadEnvironment())); }

}  // namespace dtrain::comm
