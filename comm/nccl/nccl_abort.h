// The end of a communicator that cannot be closed.
#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "comm/nccl/nccl_communicator.h"

namespace dtrain::comm {

inline constexpr absl::Duration kAbortBound = absl::Seconds(30);

// Aborts `communicator` on a thread of its own. ncclCommAbort waits for the streams of the
// communicator and for NCCL's threads. If it has not returned after `bound`, the process ends with
// kExitTemporary and one line that begins with `who`, because the device cannot be used any more
// and a rank that stays would hold up the restart of the others.
void AbortOrEndProcess(std::shared_ptr<NcclCommunicator> communicator, absl::Duration bound,
                       const std::string& who);

}  // namespace dtrain::comm
