// Whether the tests of CUDA kernels run on the emulated device.
#pragma once

namespace dtrain::emulation {

inline bool emulated = false;  // emulated_main.cc sets it before the tests.
// In the second of the two orders, where a missing barrier shows in the smallest shape that has it.
inline bool descending = false;

}  // namespace dtrain::emulation
