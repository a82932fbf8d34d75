// In place of emulated_kernels.cc where the build has no emulated device.
#include "tests/runtime/testing/emulated_kernels.h"

namespace dtrain::testing {

bool PutEmulatedKernels(kernels::CudaKernelTable& /*table*/) { return false; }
int64_t EmulatedLaunches() { return 0; }

}  // namespace dtrain::testing
