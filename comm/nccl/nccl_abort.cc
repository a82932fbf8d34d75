#include "comm/nccl/nccl_abort.h"

#include <unistd.h>

#include <utility>

#include "base/log.h"
#include "base/status.h"
#include "comm/nccl/bounded_call.h"

namespace dtrain::comm {

void AbortOrEndProcess(std::shared_ptr<NcclCommunicator> communicator, absl::Duration bound,
                       const std::string& who) {
  if (communicator->gone()) {
    return;
  }
  if (ReturnsWithin(bound, [kept = std::move(communicator)] { kept->Abort(); })) {
    return;
  }
  DT_LOG(Error) << who << ": ncclCommAbort has not returned after " << absl::FormatDuration(bound)
                << ": a stream of the GPU or a peer of the same host is stuck; this process ends "
                   "with "
                << kExitTemporary << ", so that the job can restart";
  _exit(kExitTemporary);
}

}  // namespace dtrain::comm
