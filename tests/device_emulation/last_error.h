// A launch and the emulated CUDA runtime share the last error, which a launch sets and
// cudaGetLastError takes, and the copies that have not landed yet.
#pragma once

#include <driver_types.h>

namespace dtrain::emulation {

void SetLastError(cudaError error);

// Carries out the copies that cudaMemcpy has taken from the host's memory so far.
void LandCopies();

}  // namespace dtrain::emulation
