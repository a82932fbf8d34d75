// NcclApi over libnccl.so.2, which is opened at its first use. Thread-safe as NCCL is.
#pragma once

#include <string>

#include "comm/nccl/nccl_api.h"

namespace dtrain::comm {

// The process's instance, which is never destroyed. Null if NCCL cannot be opened, and then
// `*error` says why. A copy that the process has mapped already, such as LibTorch's, is taken
// before any other.
NcclApi* RealNccl(std::string* error);

}  // namespace dtrain::comm
