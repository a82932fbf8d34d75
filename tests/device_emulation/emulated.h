// Whether the tests of CUDA kernels run on the emulated device.
#pragma once

namespace dtrain::emulation {

inline bool emulated = false;  // emulated_main.cc sets it before the tests.

}  // namespace dtrain::emulation
