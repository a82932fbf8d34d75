// Whether a GPU can run this build's CUDA kernels: they are compiled for some architectures, and a
// launch on another fails.
#pragma once

#include "absl/status/status.h"

namespace dtrain::kernels {

// Asks for the calling thread's current device. FailedPrecondition with CUDA's reason where the
// build holds neither code for it nor code that its driver can compile. Waits for the kernel to be
// loaded.
absl::Status CheckDeviceImageCuda();

}  // namespace dtrain::kernels
