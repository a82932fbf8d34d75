// Status texts for NCCL and CUDA results. Pure functions.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/numeric/dtype.h"
#include "comm/buffer.h"
#include "comm/nccl/cuda_api.h"
#include "comm/nccl/nccl_api.h"

namespace dtrain::comm {

// OK for kSuccess and kInProgress. Otherwise "what: NCCL's text (its last error)" as Unavailable
// (remote, system), InvalidArgument, or Internal.
absl::Status NcclStatus(NcclApi& api, NcclResult result, NcclComm* comm, absl::string_view what);
// OK for kSuccess; otherwise "what: CUDA's text" as Internal.
absl::Status CudaStatus(CudaApi& api, CudaResult result, absl::string_view what);

absl::StatusOr<NcclDType> ToNcclDType(DType dtype);
bool IsFloating(DType dtype);

}  // namespace dtrain::comm
