// NcclApi over libnccl.so.2, opened when first asked for. Thread-safe as NCCL is.
#pragma once

#include <string>

#include "comm/nccl/nccl_api.h"

namespace dtrain::comm {

// The process's instance, never destroyed; null with `*error` when NCCL cannot be opened. A copy
// that the process has mapped already (LibTorch's) is taken before any other.
NcclApi* RealNccl(std::string* error);

}  // namespace dtrain::comm
